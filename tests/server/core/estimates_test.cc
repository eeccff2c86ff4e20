// What an estimate says of a job, live or new, as stories.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "tests/server/core/forecasts.h"

namespace lorad::server {
namespace {

TEST_CASE("who comes before it puts a waiting job off, and an estimate says so") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const std::vector<std::string> jobs = SubmitMany(*world, 2);
  world->RunUntilState(jobs[0], Job::RUNNING);
  const int64_t before_us = Micros(EstimateOf(*world, jobs[1]).forecast().start_time());
  CHECK(before_us > world->now_us());
  Job last = LongJob();
  last.set_base_model("m2");
  const auto alone = world->Get<v1::JobEstimate>(EstimateJob{.job = last});
  REQUIRE(alone.has_forecast());
  CHECK(Micros(alone.forecast().start_time()) >= before_us);
  CHECK(Micros(alone.forecast().end_time()) > Micros(alone.forecast().start_time()));
  // One of higher priority and the running base model goes first.
  for (int i = 0; i < 4; ++i) world->Submit(LongJob(7));
  CHECK(Micros(EstimateOf(*world, jobs[1]).forecast().start_time()) > before_us);
  CHECK_FALSE(EstimateOf(*world, jobs[0]).forecast().has_start_time());  // it runs
}

TEST_CASE("an estimate has the memory of every worker, alone and beside its group") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::RUNNING);
  const auto fresh = world->Get<v1::JobEstimate>(EstimateJob{.job = World::NewJob()});
  REQUIRE(fresh.workers_size() == 2);
  const bool first = !fresh.workers(0).group().empty();
  const v1::WorkerEstimate& busy = fresh.workers(first ? 0 : 1);
  const v1::WorkerEstimate& idle = fresh.workers(first ? 1 : 0);
  CHECK(busy.group() == world->Job(job).group());
  CHECK(idle.group().empty());
  CHECK_FALSE(idle.has_beside());
  CHECK(idle.fits_alone());
  CHECK(idle.budget_bytes() > 0);
  for (const v1::WorkerEstimate& worker : fresh.workers()) {
    CHECK(worker.alone().total() == worker.alone().weights() + worker.alone().adapters() +
                                        worker.alone().optimizer() + worker.alone().activations() +
                                        worker.alone().workspace());
  }
  // Two adapters like each other.
  CHECK(busy.beside().adapters() == 2 * busy.alone().adapters());
  CHECK(busy.beside().optimizer() == 2 * busy.alone().optimizer());
  CHECK(busy.beside().weights() == busy.alone().weights());
  CHECK(busy.fits_beside());
  CHECK_FALSE(busy.forms_again());
  // The job itself is not beside itself.
  const auto own = EstimateOf(*world, job);
  CHECK(own.workers(first ? 0 : 1).beside().adapters() == busy.alone().adapters());
  world->SetLongest("long", 5000);
  world->AddDataset("long", 4);
  Job longer = World::NewJob();
  longer.set_training_dataset("long");
  longer.mutable_training()->set_max_length(5000);
  const auto longest = world->Get<v1::JobEstimate>(EstimateJob{.job = longer});
  CHECK(longest.workers(first ? 0 : 1).forms_again());
  CHECK(longest.workers(first ? 0 : 1).beside().activations() > busy.beside().activations());
}

TEST_CASE("estimates of jobs that are not live are refused") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  CHECK(Reason(world->Call(EstimateJob{.name = "job-none"}).status()) == "JOB_NOT_FOUND");
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Settle();
  CHECK(Reason(world->Call(EstimateJob{.name = job}).status()) == "JOB_ENDED");
}

// Of a live job and of one like it that is not created yet.
void CheckNoForecast(World& world, const std::string& live, const Job& fresh,
                     const std::string& why) {
  const v1::JobEstimate of_live = EstimateOf(world, live);
  CHECK_FALSE(of_live.has_forecast());
  CHECK(of_live.no_forecast() == why);
  const auto of_fresh = world.Get<v1::JobEstimate>(EstimateJob{.job = fresh});
  CHECK_FALSE(of_fresh.has_forecast());
  CHECK(of_fresh.no_forecast() == why);
}

TEST_CASE("an estimate without a forecast says why, in the words of the queue") {
  auto world = MakeWorld(Few());
  const std::string job = world->Submit(LongJob());
  world->Settle();
  CheckNoForecast(*world, job, LongJob(), "no worker is connected");
  world->StartWorkers();
  world->RunUntilState(job, Job::RUNNING);
  CHECK(EstimateOf(*world, job).no_forecast().empty());

  v1::SetQuotaRequest quota;
  quota.mutable_quota()->set_label("team=math");
  quota.mutable_quota()->set_running_jobs(0);
  world->Get<v1::Quota>(quota);
  Job held = LongJob();
  (*held.mutable_labels())["team"] = "math";
  const std::string waits = world->Submit(held);
  world->RunUntilState(waits, Job::QUEUED);
  CheckNoForecast(*world, waits, held, world->Job(waits).queue().why());
  CHECK(world->Job(waits).queue().why().find("team=math") != std::string::npos);

  REQUIRE(world->Call(Named<v1::PauseJobRequest>(job)).ok());
  world->RunUntilState(job, Job::PAUSED);
  CHECK(EstimateOf(*world, job).no_forecast() == "its user has paused it");
  REQUIRE(world->Call(Named<v1::ResumeJobRequest>(job)).ok());

  v1::DrainWorkerRequest drain;
  drain.set_name("worker-0");
  drain.set_reason("a new driver");
  world->Get<v1::Worker>(drain);
  world->RunUntilState(job, Job::QUEUED);
  world->Settle();
  const std::string drained = "worker 'worker-0' is drained (a new driver)";
  CHECK(world->Job(job).queue().why() == drained);
  CheckNoForecast(*world, job, LongJob(), drained);
}

TEST_CASE("an estimate of a job that no worker has room for says how much it needs") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  world->SetLongest("long", 1 << 20);
  world->AddDataset("long", 4);
  Job large = LongJob();
  large.set_training_dataset("long");
  large.mutable_adapter()->set_rank(512);
  large.mutable_training()->set_max_length(1 << 20);
  const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = large});
  CHECK_FALSE(estimate.fits());
  CHECK_FALSE(estimate.has_forecast());
  CHECK_THAT(estimate.no_forecast(),
             Catch::StartsWith("needs ") && Catch::Contains(" MiB; the largest worker offers "));
  // It would not do if it were undrained.
  v1::DrainWorkerRequest drain;
  drain.set_name("worker-0");
  drain.set_reason("a new driver");
  world->Get<v1::Worker>(drain);
  const auto drained = world->Get<v1::JobEstimate>(EstimateJob{.job = large});
  CHECK_THAT(drained.no_forecast(),
             Catch::StartsWith("needs ") &&
                 Catch::EndsWith("; worker 'worker-0' is drained (a new driver)"));
}

TEST_CASE("an estimate foretells nothing while nothing is begun: no room, or a stop") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntilState(job, Job::RUNNING);
  const auto stalled = [&] { return world->Job(job).stalled(); };
  world->SetRoom(0, int64_t{80} << 20);
  world->RunUntil([&] { return !stalled().empty(); });
  CheckNoForecast(*world, job, LongJob(), stalled());
  world->SetRoom(int64_t{1} << 40, int64_t{80} << 20);
  world->RunUntil([&] { return stalled().empty(); });
  CHECK(EstimateOf(*world, job).has_forecast());
  world->Ask(StopRequested{}, [](const auto&) {});
  CheckNoForecast(*world, job, LongJob(), "the coordinator is being stopped");
}

}  // namespace
}  // namespace lorad::server
