#include "server/store/committed_reads.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/rules/job_states.h"
#include "server/errors/errors.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"

namespace lorad::server {
namespace {

template <class Record>
absl::StatusOr<Record> Parse(const char* kind, std::string_view name, std::string_view bytes) {
  Record record;
  if (record.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return record;
  return StoreCorrupt(absl::StrCat(kind, " '", std::string(name), "'"));
}

class Reader {
 public:
  Reader(storage::JobStore& store, const Uncommitted& beside) : store_(store), beside_(beside) {}

  using Answer = absl::StatusOr<ReplyValue>;

  Answer operator()(const v1::GetJobRequest& request) {
    absl::StatusOr<records::JobRecord> record = Get<records::JobRecord>(kJobKind, request.name());
    if (!record.ok()) return record.status();
    if (absl::Status status = ReadProgress(); !status.ok()) return status;
    return ReplyValue(View(*record));
  }
  Answer operator()(const v1::GetModelRequest& request) {
    return Of(Get<records::ModelRecord>(kModelKind, request.name()), &records::ModelRecord::model);
  }
  Answer operator()(const v1::GetDatasetRequest& request) {
    return Of(Get<records::DatasetRecord>(kDatasetKind, request.name()),
              &records::DatasetRecord::dataset);
  }
  Answer operator()(const v1::GetAdapterRequest& request) {
    return Of(Get<records::AdapterRecord>(kAdapterKind, request.name()),
              &records::AdapterRecord::adapter);
  }
  Answer operator()(const v1::ListModelsRequest& request) {
    return Page<records::ModelRecord, v1::ListModelsResponse>(
        kModelKind, "models", request,
        [](auto& page, const auto& record) { *page.add_models() = record.model(); });
  }
  Answer operator()(const v1::ListDatasetsRequest& request) {
    return Page<records::DatasetRecord, v1::ListDatasetsResponse>(
        kDatasetKind, "datasets", request,
        [](auto& page, const auto& record) { *page.add_datasets() = record.dataset(); });
  }
  Answer operator()(const v1::ListAdaptersRequest& request) {
    return Page<records::AdapterRecord, v1::ListAdaptersResponse>(
        kAdapterKind, "adapters", request,
        [](auto& page, const auto& record) { *page.add_adapters() = record.adapter(); });
  }
  Answer operator()(const v1::ListJobsRequest& request);
  Answer operator()(const SnapshotJobs& request);
  Answer operator()(const v1::GetClusterRequest&);

 private:
  template <class Record>
  absl::StatusOr<Record> Get(const char* kind, const std::string& name) {
    absl::StatusOr<std::optional<std::string>> bytes = store_.GetRecord(kind, name);
    if (!bytes.ok()) return bytes.status();
    if (!*bytes) return NotFound(kind, name);
    return Parse<Record>(kind, name, **bytes);
  }

  template <class Record, class Field>
  static absl::StatusOr<ReplyValue> Of(const absl::StatusOr<Record>& record, Field field) {
    if (!record.ok()) return record.status();
    return ReplyValue(((*record).*field)());
  }

  // One page of a kind in the order of names, as the core gives it.
  template <class Record, class Response, class Request, class Add>
  absl::StatusOr<ReplyValue> Page(const char* kind, const char* scope, const Request& request,
                                  Add add) {
    absl::StatusOr<std::string> cursor = ReadPageToken(scope, request.page_token());
    if (!cursor.ok()) return cursor.status();
    const int page_size = request.page_size() > 0 ? request.page_size() : kPageSizeDefault;
    Response page;
    std::string last;
    int size = 0;
    absl::Status status =
        store_.ScanRecords(kind, [&](std::string_view key, std::string_view value) -> absl::Status {
          if (key <= *cursor || size > page_size) return absl::OkStatus();
          if (size++ == page_size) {
            page.set_next_page_token(MakePageToken(scope, last));
            return absl::OkStatus();
          }
          absl::StatusOr<Record> record = Parse<Record>(kind, key, value);
          if (!record.ok()) return record.status();
          add(page, *record);
          last = key;
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return ReplyValue(std::move(page));
  }

  absl::StatusOr<std::vector<records::JobRecord>> AllJobs() {
    if (absl::Status status = ReadProgress(); !status.ok()) return status;
    std::vector<records::JobRecord> jobs;
    absl::Status status = store_.ScanRecords(
        kJobKind, [&](std::string_view key, std::string_view value) -> absl::Status {
          absl::StatusOr<records::JobRecord> record =
              Parse<records::JobRecord>(kJobKind, key, value);
          if (!record.ok()) return record.status();
          *record->mutable_job() = View(*record);
          jobs.push_back(*std::move(record));
          return absl::OkStatus();
        });
    if (!status.ok()) return status;
    return jobs;
  }

  // What a step changes is stored beside the job's record.
  absl::Status ReadProgress() {
    return store_.ScanRecords(
        kProgressKind, [&](std::string_view key, std::string_view value) -> absl::Status {
          absl::StatusOr<v1::Job> progress = Parse<v1::Job>(kProgressKind, key, value);
          if (!progress.ok()) return progress.status();
          progress_[std::string(key)] = *std::move(progress);
          return absl::OkStatus();
        });
  }

  v1::Job View(const records::JobRecord& record) const {
    v1::Job job = record.job();
    const auto progress = progress_.find(job.name());
    if (progress != progress_.end() && progress->second.revision() > job.revision()) {
      SetProgress(progress->second, &job);
    }
    if (job.state() == v1::Job::QUEUED) job.mutable_queue()->set_why(beside_.why);
    if (IsPlaced(job.state())) SetStalled(beside_.why, &job);
    return job;
  }

  storage::JobStore& store_;
  const Uncommitted& beside_;
  std::map<std::string, v1::Job> progress_;  // by name
};

Reader::Answer Reader::operator()(const v1::ListJobsRequest& request) {
  absl::StatusOr<JobFilter> filter = JobFilter::Parse(request.filter());
  if (!filter.ok()) return filter.status();
  const std::string scope = absl::StrCat("jobs/", request.filter());
  absl::StatusOr<std::string> cursor = ReadPageToken(scope, request.page_token());
  if (!cursor.ok()) return cursor.status();
  int64_t before = std::numeric_limits<int64_t>::max();
  if (!cursor->empty() && !absl::SimpleAtoi(*cursor, &before)) {
    return InvalidFields("request", {{"page_token", "is not of this list"}});
  }
  absl::StatusOr<std::vector<records::JobRecord>> jobs = AllJobs();
  if (!jobs.ok()) return jobs.status();
  std::ranges::sort(*jobs, std::greater(), &records::JobRecord::order);
  const int page_size = request.page_size() > 0 ? request.page_size() : kPageSizeDefault;
  v1::ListJobsResponse page;
  int64_t last = 0;
  for (const records::JobRecord& record : *jobs) {
    if (record.order() >= before || !filter->Matches(record.job())) continue;
    if (page.jobs_size() == page_size) {
      page.set_next_page_token(MakePageToken(scope, absl::StrCat(last)));
      break;
    }
    if (request.view() == v1::ListJobsRequest::SUMMARY) {
      Summarize(record.job(), *page.add_jobs());
    } else {
      *page.add_jobs() = record.job();
    }
    last = record.order();
  }
  return ReplyValue(std::move(page));
}

Reader::Answer Reader::operator()(const SnapshotJobs& request) {
  absl::StatusOr<std::vector<records::JobRecord>> jobs = AllJobs();
  if (!jobs.ok()) return jobs.status();
  std::set<std::string> missing(request.names.begin(), request.names.end());
  JobSnapshot snapshot;
  for (const records::JobRecord& record : *jobs) {
    const v1::Job& job = record.job();
    const bool named = request.names.empty() || missing.erase(job.name()) > 0;
    const bool wanted = named && (IsLive(job.state()) || !request.live_only);
    if (!wanted || job.revision() <= request.after) continue;
    if (job.revision() <= request.up_to) {
      snapshot.jobs.push_back(job);
    } else {
      snapshot.changed.push_back(job.name());
    }
  }
  if (!missing.empty() && request.after == 0) return NotFound(kJobKind, *missing.begin());
  std::ranges::sort(snapshot.jobs, {}, &v1::Job::revision);
  if (request.limit > 0 && static_cast<int64_t>(snapshot.jobs.size()) > request.limit) {
    snapshot.jobs.resize(request.limit);
  }
  return ReplyValue(std::move(snapshot));
}

Reader::Answer Reader::operator()(const v1::GetClusterRequest&) {
  absl::StatusOr<std::vector<records::JobRecord>> jobs = AllJobs();
  if (!jobs.ok()) return jobs.status();
  v1::ClusterStatus cluster = beside_.cluster;
  auto& counts = *cluster.mutable_jobs_by_state();
  counts.clear();
  for (const records::JobRecord& record : *jobs) ++counts[ToText(record.job().state())];
  return ReplyValue(std::move(cluster));
}

}  // namespace

bool IsCommittedRead(const Request& request) {
  return std::visit(
      [](const auto& content) { return std::is_invocable_v<Reader&, decltype(content)>; }, request);
}

absl::StatusOr<ReplyValue> ReadCommitted(storage::JobStore& store, const Request& request,
                                         const Uncommitted& beside) {
  Reader reader(store, beside);
  return std::visit(
      [&](const auto& content) -> absl::StatusOr<ReplyValue> {
        if constexpr (std::is_invocable_v<Reader&, decltype(content)>) return reader(content);
        return absl::InternalError("this is no read");
      },
      request);
}

}  // namespace lorad::server
