#include "tests/bench/finished_jobs.h"

#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "tests/bench/one_worker.h"

namespace lorad::bench {
namespace {

using namespace server;  // NOLINT: the records are the server's

constexpr int64_t kJobsPerTurn = 500;
constexpr int64_t kRevisionsOfJob = 20;
constexpr int kSteps = 10;

int64_t RevisionOf(int64_t i) { return (i + 1) * kRevisionsOfJob; }

records::JobRecord RecordOf(int64_t i) {
  records::JobRecord record;
  v1::Job& job = *record.mutable_job();
  job = TypicalJob();
  job.set_name(FinishedJobName(i));
  job.set_display_name(absl::StrCat("sweep-", i));
  (*job.mutable_labels())["team"] = "search";
  (*job.mutable_labels())["sweep"] = absl::StrCat(i / 100);
  const bool failed = i % kFailedEvery == 0;
  job.set_state(failed ? v1::Job::FAILED : v1::Job::SUCCEEDED);
  for (auto* time : {job.mutable_create_time(), job.mutable_start_time(), job.mutable_end_time()}) {
    time->set_seconds(1'790'000'000 + i);
    time->set_nanos(123'456'000);
  }
  job.set_revision(RevisionOf(i));
  job.set_etag(absl::StrCat(job.revision()));
  job.set_step(kSteps);
  job.set_total_steps(kSteps);
  job.set_epoch(0.4375);
  job.set_tokens(kSteps * 4096);
  job.set_total_tokens(kSteps * 4096);
  job.set_tokens_per_second(321.25);
  job.set_loss(1.3125 + 1e-9 * static_cast<double>(i));
  job.set_learning_rate(2e-5);
  job.set_grad_norm(0.7);
  job.set_validation_loss(1.4);
  job.set_initial_validation_loss(2.1);
  job.set_adapters_per_microbatch(3.05);
  job.set_attempts(1);
  job.set_last_checkpoint_step(kSteps);
  if (failed) {
    job.mutable_error()->set_category(v1::JobError::USER);
    job.mutable_error()->set_reason("NOT_FINITE");
    job.mutable_error()->set_message("the loss of step 10 is not finite");
  }
  record.add_checkpoint_steps(kSteps);
  record.set_furthest_step(kSteps);
  record.set_microbatches(40);
  record.set_adapters_in_microbatches(122);
  record.set_numerics_id("0123456789abcdef");
  record.set_longest_tokens(512);
  record.set_training_rows(7473);
  record.set_validation_rows(1319);
  record.set_training_row_tokens(1'500'000);
  record.set_order(i + 1);
  record.set_request_id(absl::StrCat("3f2a77c0-7d5e-4c11-9f00-", 100'000'000'000 + i));
  record.set_evaluated_end(kSteps + 1);
  record.set_checkpoint_tokens(kSteps * 4096);
  return record;
}

void AddSeries(const v1::Job& job, std::vector<storage::Mutation>* turn) {
  const auto put = [&](const char* series, int64_t number, const google::protobuf::Message& value) {
    turn->push_back(storage::PutEntry(series, job.name(), number, value.SerializeAsString()));
  };
  constexpr v1::Job::State kWay[] = {v1::Job::VALIDATING, v1::Job::QUEUED,     v1::Job::PREPARING,
                                     v1::Job::RUNNING,    v1::Job::FINALIZING, v1::Job::SUCCEEDED};
  for (int i = 0; i < 6; ++i) {
    v1::Event event;
    event.set_revision(job.revision() - 10 + i);
    *event.mutable_time() = job.create_time();
    event.set_job(job.name());
    event.set_reason("STATE_CHANGED");
    event.set_message("its rows are good");
    event.set_from_state(i == 0 ? v1::Job::STATE_UNSPECIFIED : kWay[i - 1]);
    event.set_to_state(i == 5 ? job.state() : kWay[i]);
    put(kEventSeries, event.revision(), event);
  }
  for (int step = 1; step <= kSteps; ++step) {
    v1::StepMetrics row;
    row.set_step(step);
    row.set_loss(1.5 / step);
    row.set_grad_norm(0.7);
    row.set_learning_rate(2e-4);
    row.set_trained_tokens(2000);
    row.set_tokens(4096);
    row.set_step_time_ms(812.5);
    put(kMetricsSeries, step, row);
  }
  for (const int step : {0, kSteps}) {
    v1::EvaluationMetrics row;
    row.set_step(step);
    row.set_validation_loss(1.4);
    row.set_trained_tokens(100'000);
    put(kEvaluationSeries, step, row);
  }
  v1::Checkpoint checkpoint;
  checkpoint.set_job(job.name());
  checkpoint.set_step(kSteps);
  *checkpoint.mutable_create_time() = job.end_time();
  put(kCheckpointSeries, kSteps, checkpoint);
}

void AddJob(int64_t i, int64_t now_us, bool has_answer, std::vector<storage::Mutation>* turn) {
  const records::JobRecord record = RecordOf(i);
  const v1::Job& job = record.job();
  turn->push_back(storage::PutRecord(kJobKind, job.name(), record.SerializeAsString()));
  AddSeries(job, turn);
  records::RequestRecord request;
  request.set_name(job.name());
  request.set_time_us(now_us + i);
  request.set_content_sha256(std::string(32, static_cast<char>(i)));
  if (has_answer) request.set_answer(job.SerializeAsString());
  turn->push_back(storage::PutRecord(kRequestKind, absl::StrCat("job/", record.request_id()),
                                     request.SerializeAsString()));
}

}  // namespace

std::string FinishedJobName(int64_t i) {
  // As the core makes them, in an order that is not that of their arrival.
  constexpr std::string_view kAlphabet = "abcdefghijkmnpqrstuvwxyz23456789";
  std::string name = "job-";
  auto mixed = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15;
  for (int c = 0; c < 8; ++c, mixed /= 32) name += kAlphabet[mixed % 32];
  return name;
}

absl::Status StoreFinishedJobs(storage::JobStore& store, int64_t jobs, int64_t now_us) {
  const StoredState house = HouseOf(TypicalJob());
  std::vector<storage::Mutation> turn;
  for (const auto& [name, bytes] : house.models) {
    turn.push_back(storage::PutRecord(kModelKind, name, bytes));
  }
  for (const auto& [name, bytes] : house.datasets) {
    turn.push_back(storage::PutRecord(kDatasetKind, name, bytes));
  }
  for (int64_t i = 0; i < jobs; ++i) {
    AddJob(i, now_us, jobs - i <= CoreOptions().request_answers_max, &turn);
    if (i + kRevisionsOfJob > jobs) {
      v1::WatchJobsResponse revision;
      *revision.mutable_job() = RecordOf(i).job();
      revision.set_revision(RevisionOf(i));
      turn.push_back(
          storage::PutEntry(kRevisionSeries, "", RevisionOf(i), revision.SerializeAsString()));
    }
    if (i + 1 < jobs && (i + 1) % kJobsPerTurn != 0) continue;
    if (absl::Status status = store.Apply(turn); !status.ok()) return status;
    turn.clear();
  }
  return absl::OkStatus();
}

}  // namespace lorad::bench
