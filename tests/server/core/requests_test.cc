// Requests: idempotency, lists, names in use, revisions.
#include <set>

#include "server/core/events/store_kinds.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

TEST_CASE("a request_id answers with what came first, also after a crash") {
  auto world = MakeWorld();
  const std::string job = world->Submit(World::NewJob(), "r1");
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  world->CrashCoordinator();
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  CHECK(world->Submit(World::NewJob(), "r2") != job);
  CreateJob other;
  other.job = World::NewJob();
  other.job.set_priority(3);
  other.request_id = {"r1", other.job.SerializeAsString()};
  const absl::Status status = world->Call(other).status();
  CHECK(absl::IsAlreadyExists(status));
  CHECK(Reason(status) == "REQUEST_ID_REUSED");
}

constexpr int64_t kHour = int64_t{3600} * 1'000'000;
constexpr int64_t kDay = 24 * kHour;

TEST_CASE("an old request_id is forgotten an hour after a start") {
  WorldOptions options;
  options.core.request_ids_days = 7;
  auto world = MakeWorld(options);
  const std::string job = world->Submit(World::NewJob(), "r1");
  world->Sleep(8 * kDay);
  world->CrashCoordinator();
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  world->Sleep(kHour);
  world->Submit(World::NewJob(), "r2");
  CHECK(world->Submit(World::NewJob(), "r1") != job);
}

TEST_CASE("a clock that is wrong at a start, and put right, forgets no request_id") {
  const int64_t ahead_us = GENERATE(8 * kDay, 400 * kDay, -400 * kDay);
  auto world = MakeWorld();
  world->SetWallClock(20'000 * kDay);
  world->CrashCoordinator();
  const std::string job = world->Submit(World::NewJob(), "r1");
  world->SetWallClock(20'000 * kDay + ahead_us);
  world->CrashCoordinator();
  world->Submit(World::NewJob(), "r2");
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  world->SetWallClock(20'000 * kDay);
  world->Sleep(2 * kHour);
  const std::string later = world->Submit(World::NewJob(), "r3");
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  world->CrashCoordinator();
  world->Sleep(2 * kHour);
  world->Submit(World::NewJob(), "r4");
  CHECK(world->Submit(World::NewJob(), "r1") == job);
  CHECK(world->Submit(World::NewJob(), "r3") == later);
}

TEST_CASE("a clock that jumps while the coordinator runs forgets no request_id") {
  auto world = MakeWorld();
  const std::string job = world->Submit(World::NewJob(), "r1");
  world->SetWallClock(int64_t{400} * 24 * 3600 * 1'000'000);
  world->Submit(World::NewJob(), "r2");
  CHECK(world->Submit(World::NewJob(), "r1") == job);
}

TEST_CASE("a dataset's path never comes again, whatever the wall's clock says") {
  auto world = MakeWorld();
  std::set<std::string> seen;
  for (int start = 0; start < 3; ++start) {
    world->SetWallClock(1'000'000'000);  // as at the start before
    world->AddDataset("d", 4);
    for (const std::string& path : world->disk()) {
      if (path.starts_with("datasets/d-")) CHECK(seen.insert(path).second);
    }
    REQUIRE(world->Call(Named<v1::DeleteDatasetRequest>("d")).ok());
    world->CrashCoordinator();
  }
  CHECK(seen.size() == 3);
}

TEST_CASE("summaries of rows that nobody waits for make room, and are made again") {
  WorldOptions options;
  options.core.rows_max = 8;
  auto world = MakeWorld(options);
  const auto kept = [&] {
    int64_t rows = 0;
    REQUIRE(world->store()
                .ScanRecords(kRowsKind, [&](auto, auto) { return ++rows, absl::OkStatus(); })
                .ok());
    return rows;
  };
  CreateJob request;
  request.job = World::NewJob();
  request.validate_only = true;
  for (int length = 100; length < 150; ++length) {
    request.job.mutable_training()->set_max_length(length);
    CHECK(world->Get<Job>(request).total_steps() == 6);
    CHECK(kept() <= 8);
  }
  const std::string job = world->Submit(World::NewJob());
  world->StartWorkers();
  world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("names: taken, unknown, in use") {
  auto world = MakeWorld();
  RegisterModel model;
  model.model.set_name("m");
  model.config_json = "{}";
  CHECK(Reason(world->Call(model).status()) == "MODEL_EXISTS");
  CHECK(Reason(world->Call(Named<v1::GetModelRequest>("none")).status()) == "MODEL_NOT_FOUND");
  CHECK(Reason(world->Call(Named<v1::GetDatasetRequest>("none")).status()) == "DATASET_NOT_FOUND");
  CHECK(Reason(world->Call(Named<v1::GetJobRequest>("none")).status()) == "JOB_NOT_FOUND");
  CHECK(Reason(world->Call(Named<v1::DeleteAdapterRequest>("none")).status()) ==
        "ADAPTER_NOT_FOUND");

  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  const std::string job = world->Submit(content);
  CHECK(Reason(world->Call(Named<v1::DeleteDatasetRequest>("train")).status()) == "IN_USE");
  CHECK(Reason(world->Call(Named<v1::DeleteDatasetRequest>("valid")).status()) == "IN_USE");
  CHECK(Reason(world->Call(Named<v1::UnregisterModelRequest>("m")).status()) == "IN_USE");
  CHECK(Reason(world->Call(Named<v1::DeleteJobRequest>(job)).status()) == "JOB_LIVE");
  REQUIRE(world->Call(Named<v1::CancelJobRequest>(job)).ok());
  CHECK(world->Call(Named<v1::DeleteDatasetRequest>("valid")).ok());
  CHECK(world->Call(Named<v1::UnregisterModelRequest>("m")).ok());
  v1::DeleteJobRequest with_etag = Named<v1::DeleteJobRequest>(job);
  with_etag.set_etag("not this");
  CHECK(Reason(world->Call(with_etag).status()) == "ETAG_MISMATCH");
  with_etag.set_etag(world->Job(job).etag());
  CHECK(world->Call(with_etag).ok());
}

TEST_CASE("a job that names what is not there is refused with every such field") {
  auto world = MakeWorld();
  CreateJob request;
  request.job = World::NewJob();
  request.job.set_base_model("nope");
  request.job.set_training_dataset("nope");
  request.job.mutable_adapter()->set_init_from("job-nope/3");
  const absl::Status status = world->Call(request).status();
  CHECK(absl::IsInvalidArgument(status));
  CHECK(Reason(status) == "INVALID_FIELDS");
}

TEST_CASE("jobs are listed newest first, in pages, filtered") {
  auto world = MakeWorld();
  std::vector<std::string> names;
  for (int i = 0; i < 25; ++i) {
    Job job = World::NewJob();
    job.set_display_name(i % 5 == 0 ? "fifth" : "other");
    names.insert(names.begin(), world->Submit(job));
  }
  v1::ListJobsRequest request;
  request.set_page_size(10);
  std::vector<std::string> seen;
  for (;;) {
    const auto page = world->Get<v1::ListJobsResponse>(request);
    for (const Job& job : page.jobs()) seen.push_back(job.name());
    if (page.next_page_token().empty()) break;
    request.set_page_token(page.next_page_token());
  }
  CHECK(seen == names);
  v1::ListJobsRequest filtered;
  filtered.set_filter("display_name = fifth");
  CHECK(world->Get<v1::ListJobsResponse>(filtered).jobs_size() == 5);
  filtered.set_view(v1::ListJobsRequest::SUMMARY);
  const auto summaries = world->Get<v1::ListJobsResponse>(filtered);
  REQUIRE(summaries.jobs_size() == 5);
  for (const Job& summary : summaries.jobs()) {
    v1::GetJobRequest get;
    get.set_name(summary.name());
    const Job whole = world->Get<Job>(get);
    CHECK(summary.state() == whole.state());
    CHECK(summary.adapter().rank() == whole.adapter().rank());
    CHECK(summary.create_time().seconds() == whole.create_time().seconds());
    CHECK(summary.total_steps() == whole.total_steps());
    CHECK(whole.has_training());
    CHECK(!summary.has_training());
    CHECK(summary.adapter().target_modules().empty());
  }
  filtered.set_page_token(request.page_token());
  CHECK(absl::IsInvalidArgument(world->Call(filtered).status()));
}

TEST_CASE("revisions: ordered, each once, steps among them, and the deletion at last") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  const JobSnapshot snapshot = world->Get<JobSnapshot>(SnapshotJobs{{job}});
  CHECK(snapshot.jobs.size() == 1);
  world->RunUntilState(job, Job::SUCCEEDED);
  std::set<int64_t> steps;
  int64_t revision = snapshot.jobs[0].revision();
  for (const v1::WatchJobsResponse& change : world->announced()) {
    if (change.revision() <= snapshot.jobs[0].revision()) continue;
    CHECK(change.revision() > revision);
    revision = change.revision();
    steps.insert(change.job().step());
  }
  CHECK(steps == std::set<int64_t>{0, 1, 2, 3, 4, 5, 6});
  CHECK(world->announced().back().job().state() == Job::SUCCEEDED);
  CHECK(absl::IsNotFound(world->Call(SnapshotJobs{{"none"}}).status()));
  REQUIRE(world->Call(Named<v1::DeleteJobRequest>(job)).ok());
  const v1::WatchJobsResponse& gone = world->announced().back();
  CHECK(gone.deleted());
  CHECK(gone.revision() > revision);
  CHECK(gone.job().name() == job);
  CHECK(gone.job().state() == Job::SUCCEEDED);
}

TEST_CASE("an estimate waits for the first worker, for a while") {
  WorldOptions options;
  options.gpu_memory_bytes = int64_t{8} << 30;
  auto world = MakeWorld(options);
  EstimateJob request;
  request.job = World::NewJob();
  request.wait_us = 5'000'000;
  const int64_t start = world->now_us();
  SECTION("it comes") {
    bool answered = false;
    world->Ask(request, [&](absl::StatusOr<ReplyValue> reply) {
      REQUIRE(reply.ok());
      CHECK(std::get<v1::JobEstimate>(*reply).fits());
      answered = true;
    });
    world->Sleep(1'000'000);
    CHECK_FALSE(answered);
    world->StartWorkers();
    world->RunUntil([&] { return answered; });
    CHECK(world->now_us() - start < 2'000'000);
  }
  SECTION("it does not come") {
    CHECK_FALSE(world->Get<v1::JobEstimate>(request).fits());
    CHECK(world->now_us() - start == 5'000'000);
  }
  SECTION("the coordinator is stopped") {
    bool answered = false;
    world->Ask(request, [&](absl::StatusOr<ReplyValue>) { answered = true; });
    world->Settle();
    CHECK_FALSE(answered);
    REQUIRE(world->Call(StopRequested{}).ok());
    CHECK(answered);
  }
}

TEST_CASE("an assumed time is that of the device that is there, whenever it was first asked for") {
  WorldOptions options;
  options.gpu_memory_bytes = int64_t{8} << 30;
  auto early = MakeWorld(options), late = MakeWorld(options);
  EstimateJob request;
  request.job = World::NewJob();
  const double before = early->Get<v1::JobEstimate>(request).seconds();  // of some CPU
  for (World* world : {early.get(), late.get()}) {
    world->StartWorkers();
    world->Settle();
  }
  const double seconds = early->Get<v1::JobEstimate>(request).seconds();
  CHECK(seconds == late->Get<v1::JobEstimate>(request).seconds());
  CHECK(seconds < before);
}

TEST_CASE("pages of a snapshot: by revision, without what changes or goes meanwhile") {
  auto world = MakeWorld();
  std::vector<std::string> names;
  for (int i = 0; i < 7; ++i) names.push_back(world->Submit(World::NewJob()));
  const int64_t present = world->announced().back().revision();
  const auto page = [&](int64_t after, const std::vector<std::string>& among = {}) {
    return world->Get<JobSnapshot>(SnapshotJobs{among, after, 3, present});
  };
  std::set<std::string> told;
  JobSnapshot snapshot = page(0);
  REQUIRE(snapshot.jobs.size() == 3);
  CHECK(page(0, {names[5], names[2]}).jobs.size() == 2);
  // The changes of these, one told already and one not, are told after the snapshot.
  v1::CancelJobRequest cancel;
  for (const int of : {0, 6}) {
    cancel.set_name(names[of]);
    world->Get<Job>(cancel);
    world->RunUntilState(names[of], Job::CANCELLED);
  }
  REQUIRE(world->Call(Named<v1::DeleteJobRequest>(names[6])).ok());
  int64_t revision = 0;
  while (!snapshot.jobs.empty()) {
    for (const Job& job : snapshot.jobs) {
      CHECK(job.revision() > revision);
      CHECK(job.revision() <= present);
      revision = job.revision();
      told.insert(job.name());
    }
    snapshot = page(revision);
  }
  CHECK(told.contains(names[0]));
  CHECK_FALSE(told.contains(names[6]));
  CHECK(page(0, {names[0]}).jobs.empty());
  // Unknown is a name at the first page alone: later it may have gone.
  CHECK(page(revision, {names[6]}).jobs.empty());
  CHECK(absl::IsNotFound(world->Call(SnapshotJobs{{names[6]}}).status()));

  SnapshotJobs live;
  live.live_only = true;
  CHECK(world->Get<JobSnapshot>(live).jobs.size() == 5);
  live.names = {names[0], names[1]};
  CHECK(world->Get<JobSnapshot>(live).jobs.size() == 1);
  world->CrashCoordinator();
  CHECK(world->Get<JobSnapshot>(SnapshotJobs{}).jobs.size() == 6);
  CHECK(world->Get<JobSnapshot>(SnapshotJobs{{}, 0, 3}).jobs.size() == 3);
}

TEST_CASE("an estimate knows steps, tokens and memory") {
  auto world = MakeWorld();
  EstimateJob request;
  request.job = World::NewJob();
  auto estimate = world->Get<v1::JobEstimate>(request);
  CHECK(estimate.total_steps() == 6);
  CHECK(estimate.total_tokens() == 480);
  CHECK_FALSE(estimate.fits());  // no worker yet
  world->StartWorkers();
  world->Settle();
  estimate = world->Get<v1::JobEstimate>(request);
  CHECK(estimate.fits());
  const v1::MemoryEstimate& memory = estimate.peak_memory_bytes();
  CHECK(memory.total() == memory.weights() + memory.adapters() + memory.optimizer() +
                              memory.activations() + memory.workspace());
  CHECK(memory.adapters() > 0);
  CHECK(estimate.seconds() > 0);
  CHECK(estimate.seconds_basis() == "assumed throughput");
}

}  // namespace
}  // namespace lorad::server
