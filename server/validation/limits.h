// Limits on what a client may send, in one place; docs/operating.md has the same table.
#pragma once

#include <cstdint>

#include "sizes/batch.h"

namespace lorad::server {

// Text.
inline constexpr int kNameBytesMax = 63;
inline constexpr int kDisplayNameBytesMax = 128;
inline constexpr int kRequestIdBytesMax = 64;
inline constexpr int kPathBytesMax = 4096;
inline constexpr int kTemplateBytesMax = 256 << 10;  // it travels in the model that it belongs to
inline constexpr int kLabelsMax = 64;
inline constexpr int kLabelKeyBytesMax = 63;
inline constexpr int kLabelValueBytesMax = 256;
inline constexpr int kFilterBytesMax = 2048;
inline constexpr int kFilterTermsMax = 16;
inline constexpr int kPageTokenBytesMax = 1024;
inline constexpr int kWatchNamesMax = 1000;
inline constexpr int kDrainReasonBytesMax = 200;
inline constexpr int kQuotasMax = 1000;

// Pages.
inline constexpr int kPageSizeMax = 1000;
inline constexpr int kPageSizeDefault = 100;
inline constexpr int kMetricsPageSizeMax = 10'000;
inline constexpr int kMetricsPageSizeDefault = 1000;
inline constexpr int kPrintRowsMax = 10'000;

// Messages and streams.
inline constexpr int kMessageBytesMax = 4 << 20;
inline constexpr int kChunkBytesMax = 1 << 20;
inline constexpr int kStreamsMax = 256;       // open calls on one connection
inline constexpr int kConnectionsMax = 4096;  // and half of the process's file descriptors
inline constexpr int kReflectionThreadsMax = 8;
inline constexpr int kWatchesMax = 2048;  // open WatchJobs calls
inline constexpr int kUploadsMax = 64;    // CreateDataset, ImportAdapter, ValidateDataset with data
inline constexpr int kDownloadsMax = 128;                      // open DownloadCheckpoint calls
inline constexpr int kWorkersMax = 64;                         // connected at once
inline constexpr int kWorkerConnectionsMax = 2 * kWorkersMax;  // control and bulk of each
inline constexpr int kWorkerOrdersMax = 1024;  // orders that wait to be sent to one worker
inline constexpr int64_t kDatasetBytesMax = int64_t{4} << 30;
inline constexpr int64_t kAdapterBytesMax = int64_t{8} << 30;
inline constexpr int64_t kShardBytesMax = int64_t{32} << 30;

// Jobs.
using sizes::kRankMax;
inline constexpr double kEpsMin = 1e-30;  // smaller ones are 0 in float32
inline constexpr int kPriorityMax = 100;
inline constexpr int kEpochsMax = 10'000;
inline constexpr int kStepsMax = 100'000'000;
inline constexpr int kBatchSizeMax = 4096;
inline constexpr int kSequenceTokensMax = 1 << 20;
inline constexpr int kBatchTokensMax =
    1 << 22;  // batch_size * max_length: a step travels in one message

}  // namespace lorad::server
