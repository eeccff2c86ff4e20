// When jobs that wait will start and end, as the coordinator says it, and how true that was, as
// stories.
#include "tests/server/core/forecasts.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

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
