// Workers of several stages whose waits for one another end when they should: each has its threads
// and real sockets; the test says what their coordinator would.
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "tests/worker/stages.h"
#include "tests/worker/transport/join.h"

namespace lorad::worker {
namespace {

using Clock = std::chrono::steady_clock;

// Long before the limit of any wait, and of leaving a group.
constexpr std::chrono::seconds kAtOnce(5);

Harness::Options TwoStages() {
  return {.model_path = MakeRandomModel(std::filesystem::temp_directory_path() / "stage_driver"),
          .threads = 1,
          .capacity_tokens = 128,
          .longest_sequence = 100,
          .cuts = {3},
          .in_flight = 2,
          .open_listener = ListenByASocket};
}

TestJob Job() { return MakeJob("a", 4, {"q_proj"}, RandomRows(4, 20, 90, 1), 2); }

v1::CoordinatorMessage DissolveOf(int64_t epoch) {
  v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(epoch);
  return message;
}

// What the group failed for on this worker.
v1::GroupFailed FailureOf(Harness::Worker* worker) {
  worker->driver->WaitIdle();
  for (const v1::Report& report : worker->link.TakeReports()) {
    if (report.has_group_failed()) return report.group_failed();
  }
  FAIL("no GroupFailed");
  return {};
}

// A window of one step; only `stage` hears of it.
void SubmitTo(Harness* harness, size_t stage) {
  TestJob job = Job();
  v1::Window window = harness->NewWindow();
  harness->AddSteps({&job}, false, nullptr, &window);
  v1::CoordinatorMessage message;
  *message.mutable_window() = WindowsOfStages(window, 2, 2)[stage];
  harness->workers[stage]->link.Tell(std::move(message));
}

TEST_CASE("a group that is given up in mid-window is left at once, and another one is formed") {
  Harness harness(TwoStages());
  harness.Form();
  harness.Load(Job());
  for (const size_t stage : {0, 1}) {
    const auto begun = Clock::now();
    SubmitTo(&harness, stage);  // it waits for the other one, which has nothing to do
    harness.workers[stage]->link.Tell(DissolveOf(static_cast<int64_t>(stage) + 1));
    harness.workers[stage]->driver->WaitIdle();
    CHECK(Clock::now() - begun < kAtOnce);
    harness.workers[1 - stage]->link.Tell(DissolveOf(static_cast<int64_t>(stage) + 1));
    harness.WaitIdle();
    harness.TakeReports();
    harness.Form();
    harness.Load(Job());
    TestJob job = Job();
    harness.Step({&job}, true);
    CHECK_FALSE(harness.Shard(job).empty());
  }
}

TEST_CASE("a stage that is dissolved while it waits to be joined is back at once") {
  Harness harness(TwoStages());
  const std::vector<std::string> endpoints = harness.FormStages();
  CHECK(endpoints[0].starts_with("127.0.0.1:"));
  CHECK(endpoints[0] != endpoints[1]);
  v1::CoordinatorMessage connect;
  connect.mutable_connect()->set_epoch(1);
  connect.mutable_connect()->mutable_endpoints()->Add(endpoints.begin(), endpoints.end());
  harness.link.Tell(connect);  // stage 1 is not told
  const auto begun = Clock::now();
  harness.link.Tell(DissolveOf(1));
  harness.driver->WaitIdle();
  CHECK(Clock::now() - begun < kAtOnce);
}

TEST_CASE("a stage that cannot be joined is lost, and it is said which one and why") {
  Harness harness(TwoStages());
  const std::vector<std::string> endpoints = harness.FormStages();
  v1::CoordinatorMessage connect;
  connect.mutable_connect()->set_epoch(1);
  connect.mutable_connect()->add_endpoints("127.0.0.1:1");
  connect.mutable_connect()->add_endpoints(endpoints[1]);
  harness.workers[1]->link.Tell(connect);
  const v1::GroupFailed failed = FailureOf(harness.workers[1].get());
  CHECK(failed.reason() == "STAGE_LOST");
  CHECK_THAT(failed.message(), Catch::Contains("stage 0 at 127.0.0.1:1"));
}

TEST_CASE("a worker that ends in mid-window ends at once, and its neighbour says so") {
  Harness harness(TwoStages());
  harness.Form();
  harness.Load(Job());
  SubmitTo(&harness, 1);  // it stands in its Recv
  const auto begun = Clock::now();
  harness.driver.reset();
  const v1::GroupFailed failed = FailureOf(harness.workers[1].get());
  CHECK(failed.reason() == "STAGE_LOST");
  CHECK_THAT(failed.message(), Catch::Contains("stage 0"));
  CHECK(Clock::now() - begun < kAtOnce);
}

}  // namespace
}  // namespace lorad::worker
