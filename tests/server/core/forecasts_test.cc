// When jobs will start and end, as the coordinator says it, as stories.
#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

int64_t Micros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

// One worker, and all that is said takes its time.
WorldOptions Few() {
  WorldOptions options;
  options.workers = 1;
  options.delay_us_max = 50'000;
  return options;
}

// Of 120 steps.
Job LongJob(int priority = 0) {
  Job job = World::NewJob();
  job.set_priority(priority);
  job.mutable_training()->set_epochs(40);
  job.mutable_training()->set_checkpoint_every_steps(0);
  return job;
}

// Jobs of two base models in turn: half of them wait until the other model's are done.
std::vector<std::string> SubmitMany(World& world, int count) {
  std::vector<std::string> jobs;
  for (int i = 0; i < count; ++i) {
    Job job = LongJob();
    job.set_base_model(i % 2 == 0 ? "m" : "m2");
    jobs.push_back(world.Submit(job));
  }
  return jobs;
}

v1::JobEstimate EstimateOf(World& world, const std::string& name) {
  return world.Get<v1::JobEstimate>(EstimateJob{.name = name});
}

void CheckOrder(const v1::Forecast& forecast) {
  CHECK(Micros(forecast.start_earliest()) <= Micros(forecast.start_time()));
  CHECK(Micros(forecast.start_time()) <= Micros(forecast.start_latest()));
  CHECK(Micros(forecast.start_time()) < Micros(forecast.end_time()));
  CHECK(Micros(forecast.end_earliest()) <= Micros(forecast.end_time()));
  CHECK(Micros(forecast.end_time()) <= Micros(forecast.end_latest()));
  CHECK(Micros(forecast.start_earliest()) <= Micros(forecast.end_earliest()));
  CHECK(Micros(forecast.start_latest()) <= Micros(forecast.end_latest()));
}

// Of the text "..; tried again at 2020-09-13 12:26:41 UTC".
int64_t RetryOf(const std::string& why) {
  constexpr std::string_view kBefore = "tried again at ";
  const size_t at = why.find(kBefore);
  REQUIRE(at != std::string::npos);
  absl::Time retry;
  REQUIRE(
      absl::ParseTime("%Y-%m-%d %H:%M:%S UTC", why.substr(at + kBefore.size()), &retry, nullptr));
  return absl::ToUnixMicros(retry);
}

TEST_CASE("a job that is tried again later is not said to start before that") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->script().deadly.insert(job);  // its worker is lost at each of its steps
  const auto is_put_off = [&] {
    return world->Job(job).queue().why().find("tried again at") != std::string::npos;
  };
  world->RunUntil(is_put_off);
  world->Sleep(1'500'000);  // a forecast a second
  REQUIRE(is_put_off());
  const Job waits = world->Job(job);
  REQUIRE(waits.queue().has_forecast());
  const v1::Forecast& forecast = waits.queue().forecast();
  CHECK(Micros(forecast.start_time()) >= RetryOf(waits.queue().why()));
  CHECK(Micros(forecast.end_time()) > Micros(forecast.start_time()));
  const v1::JobEstimate estimate = EstimateOf(*world, job);
  CHECK(Micros(estimate.forecast().start_time()) >= RetryOf(waits.queue().why()));
}

TEST_CASE("a job that waits says when it starts and ends, and that comes true") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const std::vector<std::string> jobs = SubmitMany(*world, 8);
  world->RunUntilState(jobs[0], Job::RUNNING);
  world->Sleep(1'000'000);
  std::string waits;
  for (const std::string& job : jobs) {
    if (world->StateOf(job) == Job::QUEUED) waits = job;
  }
  REQUIRE_FALSE(waits.empty());
  const Job job = world->Job(waits);
  REQUIRE(job.queue().has_forecast());
  const v1::Forecast& forecast = job.queue().forecast();
  CHECK(Micros(forecast.make_time()) <= world->now_us());
  CheckOrder(forecast);
  CHECK(job.has_first_forecast());
  CHECK(job.queue().why() != "");

  for (const std::string& name : jobs) world->RunUntilState(name, Job::SUCCEEDED);
  const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  CHECK(cluster.start_errors().forecasts() > 0);
  CHECK(cluster.start_errors().forecasts() <= 8);
  CHECK(cluster.end_errors().forecasts() == 8);
  CHECK(world->Job(waits).has_first_forecast());
  CHECK_FALSE(world->Job(waits).has_queue());
}

TEST_CASE("a job that will take another's place says so, and that one when it ends then") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const std::string first = world->Submit(LongJob());
  world->RunUntilState(first, Job::RUNNING);
  world->Sleep(2'000'000);  // until its pace is known
  Job other = LongJob();
  other.set_base_model("m2");
  const auto start_of = [&](const Job& job) {
    const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = job, .name = ""});
    return Micros(estimate.forecast().start_time());
  };
  const int64_t behind_us = start_of(other);
  other.set_priority(1);
  const int64_t urgent_us = start_of(other);
  CHECK(urgent_us < behind_us);
  const std::string urgent = world->Submit(other);
  world->RunUntilState(urgent, Job::RUNNING);
  CHECK(world->now_us() < behind_us);
  world->Sleep(3'000'000);  // until it is known how fast that is
  REQUIRE(world->StateOf(first) == Job::QUEUED);
  CHECK(Micros(world->Job(first).queue().forecast().start_time()) > world->now_us());
  world->RunUntilState(first, Job::SUCCEEDED);
}

TEST_CASE("a forecast is made again every second, and told when it is news") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  const std::string first = world->Submit(LongJob());
  world->RunUntilState(first, Job::RUNNING);
  world->script().shards_held.insert(first);  // it does not end
  Job other = World::NewJob();
  other.set_base_model("m2");
  const std::string waits = world->Submit(other);
  world->Sleep(1);
  const int64_t made_us = Micros(world->Job(waits).queue().forecast().make_time());
  const size_t told = world->announced().size();
  world->Sleep(20'000'000);
  const int64_t again_us = Micros(world->Job(waits).queue().forecast().make_time());
  CHECK(again_us - made_us >= 19'000'000);
  CHECK(world->now_us() - again_us <= 1'000'000);
  // The start stays a moment away as long as nothing comes of the running job, so the moment moves on.
  int64_t news = 0;
  for (size_t i = told; i < world->announced().size(); ++i) {
    news += world->announced()[i].job().name() == waits;
  }
  CHECK(news >= 2);
  CHECK(news <= 10);  // of 20 forecasts
}

// Of 120 steps, each with an evaluation behind it that takes ten windows.
Job EvaluatedJob(World& world) {
  world.AddDataset("large", 160);
  Job job = LongJob();
  job.set_validation_dataset("large");
  job.mutable_training()->set_eval_every_steps(1);
  return job;
}

// Seconds from its making.
double EndOf(const v1::JobEstimate& estimate) {
  const v1::Forecast& forecast = estimate.forecast();
  return 1e-6 * static_cast<double>(Micros(forecast.end_time()) - Micros(forecast.make_time()));
}

TEST_CASE("a job that has not begun ends when its time alone is over, with its evaluations") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const Job job = EvaluatedJob(*world);
  const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = job});
  REQUIRE(estimate.seconds() > 0);
  // It loads the base model, and no attention is in it.
  CHECK(EndOf(estimate) > 0.9 * estimate.seconds());
  CHECK(EndOf(estimate) < 1.3 * estimate.seconds());
}

TEST_CASE("the end of a job that trains is foreseen with the evaluations that are left, once") {
  WorldOptions options = Few();
  options.delay_us_max = 10'000;  // rounds last some times as long as microbatches, not a hundred
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string name = world->Submit(EvaluatedJob(*world));
  for (const int64_t step : {30, 60, 110}) {
    world->RunUntil([&] { return world->Job(name).step() >= step; });
    const int64_t began_us = world->now_us();
    const double foreseen_s = EndOf(EstimateOf(*world, name));
    const double left_s = world->Job(name).seconds_left();
    auto again = MakeWorld(options);  // the same until then, to see what comes of it
    again->StartWorkers();
    const std::string same = again->Submit(EvaluatedJob(*again));
    again->RunUntilState(same, Job::SUCCEEDED);
    const double took_s = 1e-6 * static_cast<double>(again->now_us() - began_us);
    INFO("from step " << step << ": foreseen " << foreseen_s << ", left " << left_s << ", took "
                      << took_s);
    CHECK(foreseen_s == Approx(took_s).epsilon(0.2));
    CHECK(left_s == Approx(took_s).epsilon(0.2));
  }
}

TEST_CASE("a job is not at its end while its last evaluation runs") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  Job content = EvaluatedJob(*world);
  content.mutable_training()->set_eval_every_steps(0);
  const std::string name = world->Submit(content);
  world->RunUntilState(name, Job::FINALIZING);
  const v1::JobEstimate estimate = EstimateOf(*world, name);
  REQUIRE(estimate.has_forecast());
  CHECK_FALSE(estimate.forecast().has_start_time());
  CHECK(EndOf(estimate) > 0);
  double least_s = world->Job(name).seconds_left();
  const double first_s = least_s;
  world->RunUntil([&] {
    const bool evaluated = world->Evaluations(name).size() == 2;
    if (!evaluated) least_s = std::min(least_s, world->Job(name).seconds_left());
    return evaluated;
  });
  CHECK(least_s > 0);
  CHECK(least_s < first_s / 4);  // it gets less with every part
  world->RunUntilState(name, Job::SUCCEEDED);
  CHECK_FALSE(world->Job(name).has_seconds_left());
}

TEST_CASE("the optimizer's passes count once in what is foreseen") {
  WorldOptions options;
  options.token_ms = 0.2;
  options.rank_ms = 0.1;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = LongJob();
  content.mutable_training()->set_batch_size(1);  // of 20 tokens: the pass is twice that, and more
  content.mutable_adapter()->set_rank(32);
  content.mutable_training()->set_epochs(30);
  const std::string name = world->Submit(content);
  world->RunUntil([&] { return world->Job(name).step() >= 120; });
  const v1::Forecast foretold = EstimateOf(*world, name).forecast();
  const double end_s =
      static_cast<double>(Micros(foretold.end_time()) - Micros(foretold.make_time())) / 1e6;
  const int64_t then_us = world->now_us();
  world->RunUntilState(name, Job::SUCCEEDED);
  CHECK(end_s == Approx(static_cast<double>(world->now_us() - then_us) / 1e6).epsilon(0.1));
}

TEST_CASE("the time that is left of a job knows that others end before it") {
  WorldOptions options;
  options.token_ms = 0.2;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = LongJob();
  content.mutable_training()->set_epochs(200);  // 600 steps
  const std::string longest = world->Submit(content);
  content.mutable_training()->set_epochs(80);
  std::vector<std::string> others;
  for (int i = 0; i < 5; ++i) others.push_back(world->Submit(content));
  world->RunUntil([&] { return world->Job(longest).step() >= 120; });
  CHECK(world->StateOf(others[0]) == Job::RUNNING);
  const double left_s = world->Job(longest).seconds_left();
  const int64_t then_us = world->now_us();
  for (const std::string& job : others) world->RunUntilState(job, Job::SUCCEEDED);
  world->RunUntilState(longest, Job::SUCCEEDED);
  CHECK(left_s == Approx(static_cast<double>(world->now_us() - then_us) / 1e6).epsilon(0.15));
}

TEST_CASE("the time that is left of a job that is to finish is that of its steps at hand") {
  WorldOptions options = Few();
  options.token_ms = 0.5;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100);
  const std::string name = world->Submit(content);
  world->RunUntil([&] { return world->Job(name).step() >= 100; });
  const Job asked = world->Get<Job>(Named<v1::FinishJobRequest>(name));
  REQUIRE(asked.finish_step() > asked.step() + 1);
  world->RunUntil([&] { return world->Job(name).step() > asked.step(); });
  const Job job = world->Job(name);
  const double of_all = asked.seconds_left() / static_cast<double>(300 - asked.step());
  CHECK(job.seconds_left() ==
        Approx(of_all * static_cast<double>(asked.finish_step() - job.step())).epsilon(0.3));
  world->RunUntilState(name, Job::SUCCEEDED);
}

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

TEST_CASE("without a worker nothing is foreseen; a pause and a priority begin it anew") {
  auto world = MakeWorld(Few());
  const std::string job = world->Submit(LongJob());
  world->Sleep(3'000'000);
  CHECK_FALSE(world->Job(job).queue().has_forecast());
  CHECK_FALSE(world->Job(job).has_first_forecast());
  world->StartWorkers();
  world->RunUntilState(job, Job::RUNNING);
  world->Sleep(1'500'000);
  REQUIRE(world->Call(Named<v1::PauseJobRequest>(job)).ok());
  CHECK_FALSE(world->Job(job).has_first_forecast());
  world->RunUntilState(job, Job::PAUSED);
  world->Sleep(3'000'000);
  CHECK_FALSE(world->Job(job).has_first_forecast());
  REQUIRE(world->Call(Named<v1::ResumeJobRequest>(job)).ok());
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(world->Job(job).has_first_forecast());
}

TEST_CASE("a job that has ended has what was foretold beside what came of it") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const std::vector<std::string> jobs = SubmitMany(*world, 2);
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  const Job ended = world->Job(jobs[1]);
  REQUIRE(ended.first_forecast().has_start_time());
  CHECK(ended.foretold_start_time().SerializeAsString() == ended.start_time().SerializeAsString());
  CHECK(Micros(ended.first_forecast().end_time()) > Micros(ended.first_forecast().start_time()));
}

TEST_CASE("of a job that was paused the start that was foretold is that of its going on") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).step() >= 3; });
  REQUIRE(world->Call(Named<v1::PauseJobRequest>(job)).ok());
  world->RunUntilState(job, Job::PAUSED);
  CHECK_FALSE(world->Job(job).has_foretold_start_time());
  world->Sleep(5'000'000);
  REQUIRE(world->Call(Named<v1::ResumeJobRequest>(job)).ok());
  world->RunUntilState(job, Job::SUCCEEDED);
  const Job ended = world->Job(job);
  REQUIRE(ended.first_forecast().has_start_time());
  CHECK(Micros(ended.foretold_start_time()) >= Micros(ended.start_time()) + 5'000'000);
  CHECK(Micros(ended.foretold_start_time()) >= Micros(ended.first_forecast().make_time()));
  CHECK(Micros(ended.foretold_start_time()) < Micros(ended.end_time()));
}

TEST_CASE("how true forecasts were is kept over a start") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  for (const std::string& job : SubmitMany(*world, 4)) world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(30'000'000);  // learned numbers go into the store with a tick
  const auto before = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  CHECK(before.end_errors().forecasts() == 4);
  world->CrashCoordinator();
  const auto after = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  CHECK(after.end_errors().SerializeAsString() == before.end_errors().SerializeAsString());
  CHECK(after.start_errors().SerializeAsString() == before.start_errors().SerializeAsString());
}

TEST_CASE("no end is foretold before its start, whatever was learned of the two") {
  auto world = MakeWorld(Few());
  records::FitRecord learned;  // starts come late, ends early
  for (int i = 0; i < 40; ++i) {
    for (const double value : {2.0, 1.0}) learned.add_start_errors(value);
    for (const double value : {-2.0, 1.0}) learned.add_end_errors(value);
  }
  REQUIRE(world->store()
              .Apply({storage::PutRecord(kFitKind, "forecasts", learned.SerializeAsString())})
              .ok());
  world->CrashCoordinator();
  const std::vector<std::string> jobs = SubmitMany(*world, 4);
  world->RunUntilState(jobs[0], Job::RUNNING);
  world->Sleep(1'000'000);
  const Job waits = world->Job(jobs[3]);
  REQUIRE(waits.queue().has_forecast());
  CheckOrder(waits.queue().forecast());
  CHECK(Micros(waits.queue().forecast().start_latest()) ==
        Micros(waits.queue().forecast().end_latest()));
}

TEST_CASE("times that another version stored are measured anew, and the log says so") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->RunUntilState(world->Submit(LongJob()), Job::SUCCEEDED);
  world->Sleep(30'000'000);  // learned numbers go into the store with a tick
  std::vector<storage::Mutation> shorter;
  REQUIRE(world->store()
              .ScanRecords(
                  kFitKind,
                  [&](std::string_view key, std::string_view value) {
                    records::FitRecord record;
                    REQUIRE(record.ParseFromArray(value.data(), static_cast<int>(value.size())));
                    if (record.forward().empty()) return absl::OkStatus();
                    record.mutable_forward()->RemoveLast();
                    shorter.push_back(
                        storage::PutRecord(kFitKind, std::string(key), record.SerializeAsString()));
                    return absl::OkStatus();
                  })
              .ok());
  REQUIRE(shorter.size() == 1);
  REQUIRE(world->store().Apply(shorter).ok());
  world->CrashCoordinator();
  world->RunUntilState(world->Submit(LongJob()), Job::SUCCEEDED);
  CHECK(CountNotes(*world, "times of model 'm' in the store are of another version of lorad") == 1);
}

TEST_CASE("how long a group took to form is kept over a start") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Sleep(30'000'000);
  const auto load_s = [&] {
    const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
    for (const v1::TrainingTimes& times : cluster.times()) {
      if (times.base_model() == "m") return times.load_seconds();
    }
    return -1.0;
  };
  const double before = load_s();
  world->CrashCoordinator();
  world->Settle();
  CHECK(load_s() == before);
}

}  // namespace
}  // namespace lorad::server
