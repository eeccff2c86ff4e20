// Kinds of records and series in the store (docs/formats/data_dir.md).
#pragma once

namespace lorad::server {

inline constexpr char kModelKind[] = "model";      // key: name; records::ModelRecord
inline constexpr char kDatasetKind[] = "dataset";  // key: name; records::DatasetRecord
inline constexpr char kAdapterKind[] = "adapter";  // key: name; records::AdapterRecord
inline constexpr char kJobKind[] = "job";          // key: name; records::JobRecord
inline constexpr char kRowsKind[] = "rows";        // key: what was checked; records::RowsSummary
inline constexpr char kRequestKind[] = "request";  // key: KIND/REQUEST_ID; records::RequestRecord
inline constexpr char kWorkerKind[] = "worker";    // key: name; records::WorkerRecord
inline constexpr char kFitKind[] = "fit";          // key: of what (fits.h); records::FitRecord
inline constexpr char kQuotaKind[] = "quota";      // key: label; records::QuotaRecord
inline constexpr char kGroupKind[] = "group";      // key: name; records::GroupRecord
// key: GROUP/STAGE/NUMBER; worker::v1::Window, of a group that has a record
inline constexpr char kWindowKind[] = "window";
inline constexpr char kProgressKind[] = "progress";  // key: job; v1::Job (job_progress.h)
inline constexpr char kMetaKind[] = "meta";
inline constexpr char kEpochKey[] = "epoch";      // decimal text: the newest
inline constexpr char kStartsKey[] = "starts";    // decimal text: starts so far
inline constexpr char kStoreKey[] = "store";      // 16 hex digits: the store's identity
inline constexpr char kTrimmedKey[] = "trimmed";  // decimal text: revisions up to it are gone

inline constexpr char kEventSeries[] = "event";            // job, revision: v1::Event
inline constexpr char kMetricsSeries[] = "metrics";        // job, step: v1::StepMetrics
inline constexpr char kEvaluationSeries[] = "evaluation";  // job, step: v1::EvaluationMetrics
inline constexpr char kCheckpointSeries[] = "checkpoint";  // job, step: v1::Checkpoint
// "", revision: v1::WatchJobsResponse, of what is more than progress
inline constexpr char kRevisionSeries[] = "revision";

}  // namespace lorad::server
