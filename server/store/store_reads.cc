#include "server/store/store_reads.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/kept_checkpoints.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"

namespace lorad::server {
namespace {

template <class Message>
absl::StatusOr<Message> ReadRecord(storage::JobStore& store, const char* kind,
                                   const std::string& name) {
  absl::StatusOr<std::optional<std::string>> bytes = store.GetRecord(kind, name);
  if (!bytes.ok()) return bytes.status();
  if (!*bytes) return NotFound(kind, name);
  Message message;
  if (!message.ParseFromString(**bytes)) {
    return StoreCorrupt(absl::StrCat(kind, " '", name, "'"));
  }
  return message;
}

absl::StatusOr<records::JobRecord> ReadJob(storage::JobStore& store, const std::string& name) {
  return ReadRecord<records::JobRecord>(store, kJobKind, name);
}

// Parses at most `limit` entries behind `after` into what `add` makes; says whether there are more.
template <class Add>
absl::StatusOr<bool> ReadPage(storage::JobStore& store, const char* series, const std::string& job,
                              int64_t after, int64_t limit, Add add) {
  auto entries = store.ReadSeries(series, job, after, limit + 1);
  if (!entries.ok()) return entries.status();
  const bool more = static_cast<int64_t>(entries->size()) > limit;
  if (more) entries->pop_back();
  for (const storage::Entry& entry : *entries) {
    if (!add()->ParseFromString(entry.value)) {
      return StoreCorrupt(absl::StrCat(series, " ", entry.number, " of job '", job, "'"));
    }
  }
  return more;
}

absl::StatusOr<int64_t> After(const std::string& scope, const std::string& token, int64_t begin) {
  absl::StatusOr<std::string> cursor = ReadPageToken(scope, token);
  if (!cursor.ok()) return cursor.status();
  int64_t after = begin;
  if (!cursor->empty() && !absl::SimpleAtoi(*cursor, &after)) {
    return InvalidFields("request", {{"page_token", "is not of this list"}});
  }
  return after;
}

int PageSize(int size) { return std::min(size > 0 ? size : kPageSizeDefault, kPageSizeMax); }

}  // namespace

absl::StatusOr<v1::ListEventsResponse> ReadEvents(storage::JobStore& store,
                                                  const v1::ListEventsRequest& request) {
  if (auto job = ReadJob(store, request.job()); !job.ok()) return job.status();
  const std::string scope = "events/" + request.job();
  absl::StatusOr<int64_t> after = After(scope, request.page_token(), 0);
  if (!after.ok()) return after.status();
  v1::ListEventsResponse response;
  absl::StatusOr<bool> more =
      ReadPage(store, kEventSeries, request.job(), *after, PageSize(request.page_size()),
               [&] { return response.add_events(); });
  if (!more.ok()) return more.status();
  if (*more) {
    const auto& last = response.events(response.events_size() - 1);
    response.set_next_page_token(MakePageToken(scope, absl::StrCat(last.revision())));
  }
  return response;
}

absl::StatusOr<v1::GetMetricsResponse> ReadMetrics(storage::JobStore& store,
                                                   const v1::GetMetricsRequest& request) {
  if (auto job = ReadJob(store, request.job()); !job.ok()) return job.status();
  const int size = std::min(request.page_size() > 0 ? request.page_size() : kMetricsPageSizeDefault,
                            kMetricsPageSizeMax);
  v1::GetMetricsResponse response;
  absl::StatusOr<bool> more =
      request.series() == v1::GetMetricsRequest::EVALUATION
          ? ReadPage(store, kEvaluationSeries, request.job(), request.after_step(), size,
                     [&] { return response.add_evaluations(); })
          : ReadPage(store, kMetricsSeries, request.job(), request.after_step(), size,
                     [&] { return response.add_steps(); });
  if (!more.ok()) return more.status();
  response.set_more(*more);
  return response;
}

namespace {

// Its validation loss, and whether none has a lower one, as the job's record has them.
void AddLoss(const records::JobRecord& job, v1::Checkpoint* checkpoint) {
  const auto loss = job.validation_losses().find(checkpoint->step());
  if (loss == job.validation_losses().end()) return;
  checkpoint->set_validation_loss(loss->second);
  checkpoint->set_best(BestCheckpoint(job) == checkpoint->step());
}

}  // namespace

absl::StatusOr<v1::ListCheckpointsResponse> ReadCheckpoints(
    storage::JobStore& store, const v1::ListCheckpointsRequest& request) {
  const absl::StatusOr<records::JobRecord> job = ReadJob(store, request.job());
  if (!job.ok()) return job.status();
  const std::string scope = "checkpoints/" + request.job();
  absl::StatusOr<int64_t> after = After(scope, request.page_token(), 0);
  if (!after.ok()) return after.status();
  v1::ListCheckpointsResponse response;
  absl::StatusOr<bool> more =
      ReadPage(store, kCheckpointSeries, request.job(), *after, PageSize(request.page_size()),
               [&] { return response.add_checkpoints(); });
  if (!more.ok()) return more.status();
  for (v1::Checkpoint& checkpoint : *response.mutable_checkpoints()) AddLoss(*job, &checkpoint);
  if (*more) {
    const auto& last = response.checkpoints(response.checkpoints_size() - 1);
    response.set_next_page_token(MakePageToken(scope, absl::StrCat(last.step())));
  }
  return response;
}

absl::StatusOr<v1::Checkpoint> ReadCheckpoint(storage::JobStore& store,
                                              const v1::GetCheckpointRequest& request) {
  absl::StatusOr<records::JobRecord> job = ReadJob(store, request.job());
  if (!job.ok()) return job.status();
  int64_t step = request.step();
  if (step == 0 && !job->checkpoint_steps().empty()) {
    step = job->checkpoint_steps(job->checkpoint_steps_size() - 1);
  }
  if (step == 0) return NoCheckpoint(*job, step);
  v1::ListCheckpointsResponse response;
  absl::StatusOr<bool> more = ReadPage(store, kCheckpointSeries, request.job(), step - 1, 1,
                                       [&] { return response.add_checkpoints(); });
  if (!more.ok()) return more.status();
  if (response.checkpoints().empty() || response.checkpoints(0).step() != step) {
    return NoCheckpoint(*job, step);
  }
  AddLoss(*job, response.mutable_checkpoints(0));
  return std::move(*response.mutable_checkpoints(0));
}

absl::StatusOr<records::DatasetRecord> ReadDataset(storage::JobStore& store,
                                                   const std::string& name) {
  return ReadRecord<records::DatasetRecord>(store, kDatasetKind, name);
}

absl::StatusOr<records::AdapterRecord> ReadAdapter(storage::JobStore& store,
                                                   const std::string& name) {
  return ReadRecord<records::AdapterRecord>(store, kAdapterKind, name);
}

}  // namespace lorad::server
