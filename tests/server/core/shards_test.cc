// Every shard that is sent up is answered, as stories.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/store/store_reads.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
using worker::v1::WorkerMessage;

constexpr int64_t kSecond = 1'000'000;

// A worker hangs before step 4 of a job, whose checkpoint is on its way up all the same: the
// report of the step is not.
struct Early {
  std::unique_ptr<World> world;
  std::string job, neighbour;
  std::optional<absl::Status> answer;

  explicit Early(WorldOptions options = {}) : world(MakeWorld(options)) {
    world->StartWorkers();
    Job content = World::NewJob();
    content.mutable_training()->set_epochs(20);
    job = world->Submit(content);
    neighbour = world->Submit(content);
    world->RunUntil([&] { return world->Job(job).step() == 3; });
    world->worker(0).Hang(true);
    world->Settle();
    Upload(4);
    CHECK_FALSE(answer);
  }

  void Upload(int64_t step) {
    answer.reset();
    worker::v1::UploadShardRequest::Header header;
    header.set_job(job);
    header.set_step(step);
    header.set_epoch(world->worker(0).epoch());
    header.set_stages(1);
    header.set_numerics_id("sim");
    world->UploadShard(header,
                       [this](absl::StatusOr<ReplyValue> reply) { answer = reply.status(); });
    world->Settle();
  }

  std::string Answered() const {
    return !answer ? "not yet" : answer->ok() ? "OK" : Reason(*answer);
  }
};

TEST_CASE("a shard that overtakes the report of its step is taken once that is there") {
  Early early;
  early.world->worker(0).Hang(false);
  early.world->RunUntil([&] { return early.answer.has_value(); });
  CHECK(early.Answered() == "OK");
  early.world->RunUntilState(early.job, Job::SUCCEEDED);
  early.world->CheckInvariants();
}

TEST_CASE("a shard whose report can never come is refused at once") {
  Early early;
  World& world = *early.world;
  WorkerMessage message;
  SECTION("its job is cancelled") { world.Get<Job>(Named<v1::CancelJobRequest>(early.job)); }
  SECTION("its job is cancelled while it is on its way") {
    world.Get<Job>(Named<v1::CancelJobRequest>(early.job));
    early.Upload(4);
  }
  SECTION("its job is not finite") {
    auto& report = *message.mutable_report()->mutable_not_finite();
    report.set_job(early.job);
    report.set_step(4);
    report.set_what("loss");
    world.worker(0).Lie(message);
    CHECK_FALSE(early.answer);
    world.Settle();
    CHECK(world.StateOf(early.job) == Job::FAILED);
  }
  SECTION("its step is cut") {
    world.Get<Job>(Named<v1::CancelJobRequest>(early.neighbour));
    world.Settle();
  }
  SECTION("its group fails") {
    message.mutable_report()->mutable_group_failed()->set_reason("BAD_WINDOW");
    world.worker(0).Lie(message);
    world.Settle();
  }
  SECTION("its worker is lost") {
    world.worker(0).Kill(/*restart=*/false);
    world.Settle();
  }
  SECTION("its worker is closed") {
    message.mutable_report()->mutable_window_done()->set_window(-1);
    world.worker(0).Lie(message);
    world.Settle();
  }
  SECTION("the coordinator is stopped") {
    world.Ask(StopRequested{}, [](absl::StatusOr<ReplyValue>) {});
    world.Settle();
  }
  CHECK(early.Answered() == "STALE_EPOCH");
}

TEST_CASE(
    "a shard of a job that is cancelled, ends and is deleted is answered, its neighbour goes on") {
  Early early;
  World& world = *early.world;
  world.Get<Job>(Named<v1::CancelJobRequest>(early.job));
  world.worker(0).Hang(false);
  world.RunUntilState(early.job, Job::CANCELLED);
  REQUIRE(world.Call(Named<v1::DeleteJobRequest>(early.job)).ok());
  early.Upload(4);
  CHECK(early.Answered() == "STALE_EPOCH");
  world.RunUntilState(early.neighbour, Job::SUCCEEDED);
  CHECK(world.Job(early.neighbour).attempts() == 1);
}

TEST_CASE("a shard whose report does not come in time is to be sent again") {
  Early early;
  World& world = *early.world;
  world.Sleep(9 * kSecond);
  CHECK_FALSE(early.answer);
  world.Sleep(2 * kSecond);
  CHECK(early.Answered() == "STEP_NOT_REPORTED");
  CHECK(absl::IsUnavailable(*early.answer));
  // Sent twice: the first is answered too.
  early.Upload(4);
  CHECK_FALSE(early.answer);
  early.Upload(4);
  CHECK(early.Answered() == "STEP_NOT_REPORTED");
  early.answer.reset();
  world.worker(0).Hang(false);
  world.RunUntil([&] { return early.answer.has_value(); });
  CHECK(early.Answered() == "OK");
  world.RunUntilState(early.job, Job::SUCCEEDED);
  world.CheckInvariants();
}

TEST_CASE("a shard that nobody asked for is refused, and the worker's own are taken") {
  Early early;
  early.Upload(5);  // no checkpoint is due there
  CHECK(early.Answered() == "INVALID_FIELDS");
  early.Upload(-4);
  CHECK(early.Answered() == "INVALID_FIELDS");
  early.Upload(int64_t{1} << 60);
  CHECK(early.Answered() == "INVALID_FIELDS");
  early.Upload(2);  // recorded long ago
  CHECK(early.Answered() == "OK");
  early.world->worker(0).Hang(false);
  early.world->RunUntilState(early.job, Job::SUCCEEDED);
  early.world->CheckInvariants();
}

TEST_CASE("a slot that is freed while its checkpoint goes up is not freed again after a cut") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(20);
  const std::string job = world->Submit(content);
  const std::string neighbour = world->Submit(content);
  const std::string third = world->Submit(content);
  world->script().shards_held = {job};
  world->script().bad_steps[job] = 4;
  world->RunUntilState(job, Job::FAILED);
  world->Settle();  // the window that frees its slot ends behind its shard
  CHECK(world->StateOf(neighbour) == Job::RUNNING);
  CHECK_FALSE(world->plans().back().trains.empty());
  world->Get<Job>(Named<v1::CancelJobRequest>(third));
  world->Settle();
  CHECK(world->StateOf(third) == Job::CANCELLING);
  SECTION("it comes") {
    world->script().shards_held.clear();
    world->worker(0).ReleaseShards();
  }
  SECTION("it runs out of time") {}
  world->RunUntilState(third, Job::CANCELLED);
  world->RunUntilState(neighbour, Job::SUCCEEDED);
  CHECK(world->Job(neighbour).attempts() == 1);
  world->CheckInvariants();
}

// ---- what is kept of checkpoints ----

// Those that the job has, as the disk has them.
std::vector<int64_t> Kept(World& world, const std::string& job) {
  const std::string prefix = absl::StrCat("checkpoints/", job, "/");
  std::vector<int64_t> steps;
  for (const std::string& path : world.disk()) {
    if (path.starts_with(prefix)) steps.push_back(std::stoll(path.substr(prefix.size())));
  }
  std::ranges::sort(steps);
  return steps;
}

// 60 steps, of which every second one is saved.
Job KeepingJob(int last, int best) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(20);
  job.mutable_training()->set_checkpoint_keep_last(last);
  job.mutable_training()->set_checkpoint_keep_best(best);
  if (best == 0) return job;
  job.set_validation_dataset("valid");
  job.mutable_training()->set_eval_every_steps(2);
  return job;
}

TEST_CASE("of a job's checkpoints the newest are kept, over a restart too") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(KeepingJob(2, 0));
  const std::string all = world->Submit(KeepingJob(0, 0));
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 8; });
  CHECK(Kept(*world, job).size() == 2);
  world->CrashCoordinator();
  world->RunUntilState(job, Job::SUCCEEDED);
  world->RunUntilState(all, Job::SUCCEEDED);
  CHECK(Kept(*world, job) == std::vector<int64_t>{58, 60});
  CHECK(Kept(*world, all).size() == 30);
  CHECK(HasEvent(*world, job, "CHECKPOINT_REMOVED"));
  CHECK_FALSE(HasEvent(*world, all, "CHECKPOINT_REMOVED"));
  world->CheckInvariants();
}

TEST_CASE("the best are kept beside the newest") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(KeepingJob(0, 2));
  world->RunUntilState(job, Job::SUCCEEDED);
  std::vector<std::pair<double, int64_t>> losses;
  for (const v1::EvaluationMetrics& row : world->Evaluations(job)) {
    if (row.step() > 0) losses.emplace_back(row.validation_loss(), -row.step());
  }
  REQUIRE(losses.size() == 30);
  std::ranges::sort(losses);
  std::set<int64_t> expected = {60, -losses[0].second, -losses[1].second};
  const std::vector<int64_t> kept = Kept(*world, job);
  CHECK(std::set<int64_t>(kept.begin(), kept.end()) == expected);
  v1::ListCheckpointsRequest request;
  request.set_job(job);
  const auto listed = ReadCheckpoints(world->store(), request);
  REQUIRE(listed.ok());
  for (const v1::Checkpoint& checkpoint : listed->checkpoints()) {
    CHECK(checkpoint.best() == (checkpoint.step() == -losses[0].second));
    CHECK(checkpoint.has_validation_loss());
  }
  world->CheckInvariants();
}

TEST_CASE("a checkpoint that is read or begun from is kept until that is over") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(KeepingJob(1, 0));
  world->RunUntil([&] { return !Kept(*world, job).empty(); });
  const int64_t step = Kept(*world, job).front();
  SECTION("read") {
    CHECK(world->Get<Job>(HoldCheckpoint{job, step}).name() == job);
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(Kept(*world, job) == std::vector<int64_t>{step, 60});
    world->Sleep(50 * kSecond);
    CHECK(world->Get<Job>(HoldCheckpoint{job, step}).name() == job);  // a download goes on
    world->Sleep(50 * kSecond);
    CHECK(Kept(*world, job) == std::vector<int64_t>{step, 60});
  }
  SECTION("begun from") {
    Job heir = World::NewJob();
    heir.mutable_adapter()->set_init_from(absl::StrCat(job, "/", step));
    heir.set_base_model("m");
    const std::string name = world->Submit(heir);
    world->Get<Job>(Named<v1::PauseJobRequest>(name));
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(Kept(*world, job) == std::vector<int64_t>{step, 60});
    world->Get<Job>(Named<v1::CancelJobRequest>(name));
    world->RunUntilState(name, Job::CANCELLED);
  }
  SECTION("read while the coordinator died") {
    world->Get<Job>(HoldCheckpoint{job, step});
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(Kept(*world, job).size() == 2);
    world->CrashCoordinator();
  }
  CHECK(Reason(world->Call(HoldCheckpoint{"job-none", 1}).status()) == "JOB_NOT_FOUND");
  world->Sleep(100 * kSecond);
  CHECK(Kept(*world, job) == std::vector<int64_t>{60});
  world->CheckInvariants();
}

TEST_CASE("a checkpoint that cannot be written is not told of; the job does not end without it") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(content);
  CHECK(world->Job(job).stalled().empty());
  world->FailSaves(absl::ResourceExhaustedError("the disk is full"));
  world->RunUntilState(job, Job::FINALIZING);
  world->Settle();
  CHECK(world->StateOf(job) == Job::FINALIZING);
  CHECK(world->Job(job).last_checkpoint_step() == 0);
  world->Sleep(10'000'000);  // it is tried again, and told of once
  const auto events = world->Events(job);
  CHECK(std::ranges::count(events, "CHECKPOINT_NOT_WRITTEN", &v1::Event::reason) == 1);
  CHECK_THAT(world->Job(job).stalled(),
             Catch::StartsWith("the checkpoint of step 6, its last here,"));
  CHECK_FALSE(world->Job(job).has_seconds_left());
  // Asked for again after a while, also where the worker has given up.
  world->FailSaves(absl::OkStatus());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a job that trains on shows why its checkpoint is not written, until one is") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());  // a checkpoint every 2 of 6 steps
  const auto announced = [&] {
    const auto& all = world->announced();
    const auto news = std::find_if(all.rbegin(), all.rend(), [&](const v1::WatchJobsResponse& one) {
      return one.job().name() == job;
    });
    return news->job().unsaved();
  };
  world->FailSaves(absl::ResourceExhaustedError("the disk is full"));
  world->RunUntil([&] { return HasEvent(*world, job, "CHECKPOINT_NOT_WRITTEN"); });
  CHECK(world->StateOf(job) == Job::RUNNING);
  CHECK(world->Job(job).stalled().empty());
  const std::string why =
      "the checkpoint of step 2 cannot be written: the disk is full; it is tried again";
  CHECK(world->Job(job).unsaved() == why);
  CHECK(announced() == why);
  const auto page = world->Get<v1::ListJobsResponse>([] {
    v1::ListJobsRequest request;
    request.set_view(v1::ListJobsRequest::SUMMARY);
    return request;
  }());
  CHECK(page.jobs(0).unsaved() == why);
  world->FailSaves(absl::OkStatus());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() > 0; });
  CHECK(world->Job(job).unsaved().empty());
  CHECK(announced().empty());
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).unsaved().empty());
}

TEST_CASE("why a checkpoint is not written is the newest reason, and goes with its group") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100);
  const std::string job = world->Submit(content);
  world->FailSaves(absl::ResourceExhaustedError("the disk is full"));
  world->RunUntil([&] { return !world->Job(job).unsaved().empty(); });
  world->FailSaves(absl::PermissionDeniedError("the folder is read-only"));
  world->RunUntil([&] {
    return world->Job(job).unsaved().find("the folder is read-only") != std::string::npos;
  });
  CHECK(CountEvents(*world, job, "CHECKPOINT_NOT_WRITTEN") == 1);
  world->worker(0).Kill();
  world->RunUntil([&] { return world->StateOf(job) == Job::QUEUED; });
  CHECK(world->Job(job).unsaved().empty());
  world->FailSaves(absl::OkStatus());
  world->RunUntilState(job, Job::RUNNING);
  CHECK(world->Job(job).unsaved().empty());
}

TEST_CASE("a checkpoint that a worker cannot send is told of, and a job that is to end waits") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(content);
  world->RefuseShards(absl::FailedPreconditionError("CERTIFICATE_EXPIRED: it is over"));
  world->RunUntilState(job, Job::FINALIZING);
  world->Sleep(5'000'000);
  CHECK_FALSE(HasEvent(*world, job, "CHECKPOINT_NOT_WRITTEN"));
  world->Sleep(60'000'000);
  CHECK(world->StateOf(job) == Job::FINALIZING);
  std::vector<std::string> told;
  for (const v1::Event& event : world->Events(job)) {
    if (event.reason() == "CHECKPOINT_NOT_WRITTEN") told.push_back(event.message());
  }
  REQUIRE(told.size() == 1);
  CHECK_THAT(told[0], Catch::Contains("cannot send the checkpoint of step 6: CERTIFICATE_EXPIRED"));
  world->RefuseShards(absl::OkStatus());
  world->Sleep(6'000'000);
  CHECK(world->StateOf(job) == Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 1);
  world->CheckInvariants();
}

TEST_CASE("a job that is to leave waits for its save, also behind an older one, and says so") {
  WorldOptions options;
  options.delay_us_max = 20'000;  // so that steps take time
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();  // a checkpoint every 2 of 6 steps
  const std::string ends = world->Submit(content);
  content.mutable_training()->set_epochs(100'000);
  const std::string pauses = world->Submit(content);
  world->RefuseShards(absl::ResourceExhaustedError("the disk is full"));
  world->Sleep(60'000'000);
  CHECK(world->StateOf(ends) == Job::FINALIZING);
  CHECK_THAT(world->Job(ends).unsaved(), Catch::Contains("of step 2"));
  CHECK_THAT(world->Job(ends).stalled(), Catch::StartsWith("the checkpoint of step 6, its last"));
  CHECK(world->Job(ends).tokens_per_second() == 0);
  CHECK(world->Job(pauses).stalled().empty());  // it trains
  v1::PauseJobRequest pause;
  pause.set_name(pauses);
  world->Get<Job>(pause);
  world->Sleep(5'000'000);
  CHECK(world->StateOf(pauses) == Job::PAUSING);
  CHECK_THAT(world->Job(pauses).stalled(), Catch::Contains("its last here, is not written yet"));
  world->RefuseShards(absl::OkStatus());
  world->RunUntilState(ends, Job::SUCCEEDED);
  world->RunUntilState(pauses, Job::PAUSED);
  CHECK(world->Job(pauses).last_checkpoint_step() == world->Job(pauses).step());
  world->CheckInvariants();
}

TEST_CASE("a shard that is no checkpoint closes its worker, and its job goes on") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->FailSaves(absl::InvalidArgumentError("a moment is missing"));
  world->RunUntil([&] { return HasEvent(*world, job, "WORKER_LIED"); });
  CHECK(world->StateOf(job) == Job::QUEUED);
  CHECK(world->Job(job).last_checkpoint_step() == 0);
  world->FailSaves(absl::OkStatus());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
