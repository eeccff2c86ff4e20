// Time and death in the coordinator's loop.
#include "tests/server/driver/loop_fixture.h"

namespace lorad::server {
namespace {

// ---- time ----

TEST_CASE("timers fire after the mail that lay there, also where that is more than a turn's") {
  Coordinator coordinator;
  Connect(coordinator, 1);
  // The coordinator stands still for 50 s; the worker's heartbeat came 20 s ago, behind a crowd.
  coordinator.clock.now_us += 30 * kSecond;
  for (int i = 0; i < 1000; ++i) coordinator.Ask(v1::GetClusterRequest());
  SayHeartbeat(coordinator, 1);
  coordinator.clock.now_us += 20 * kSecond;
  coordinator.Settle();
  CHECK(coordinator.closed.empty());
  CHECK(coordinator.answers.size() == 1000);
}

TEST_CASE("mail that never ends does not hold up timers") {
  Coordinator coordinator;
  Connect(coordinator, 1);
  // Silent for more than its lease, and always more mail than a turn takes.
  for (int turn = 0; turn < 60 && coordinator.closed.empty(); ++turn) {
    coordinator.clock.now_us += kSecond;
    for (int i = 0; i < 300; ++i) coordinator.Ask(v1::GetClusterRequest());
    REQUIRE(coordinator.loop->RunTurn().ok());
  }
  CHECK(coordinator.closed == std::vector<uint64_t>{1});
}

// ---- death ----

TEST_CASE("a death between any two steps loses nothing that was told, and does nothing twice") {
  bool died_unanswered = false;
  for (int steps = 0;; ++steps) {
    CAPTURE(steps);
    Coordinator coordinator;
    REQUIRE(coordinator.Call(NewModel("m")).ok());
    REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
    const uint64_t request = coordinator.Ask(NewJob("id"));
    int done = 0;
    while (done < steps && coordinator.Step()) ++done;
    const bool told = coordinator.answers.contains(request);
    const bool stored =
        !coordinator.store
             .ScanRecords("job", [](auto, auto) { return absl::CancelledError("there is one"); })
             .ok();
    CHECK((stored || !told));
    died_unanswered |= stored && !told;
    const std::string name = told ? std::get<v1::Job>(*coordinator.answers.at(request)).name() : "";
    coordinator.Start();
    const auto again = coordinator.Call(NewJob("id"));
    REQUIRE(again.ok());
    if (told) CHECK(std::get<v1::Job>(*again).name() == name);
    const auto all = coordinator.Call(SnapshotJobs{});
    CHECK(std::get<JobSnapshot>(*all).jobs.size() == 1);
    if (done < steps) break;
  }
  CHECK(died_unanswered);
}

TEST_CASE("a loop that ends hurries the plans that are under way") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  REQUIRE(coordinator.Call(NewJob()).ok());
  Connect(coordinator, 1);
  REQUIRE(coordinator.sent.back().has_form_group());
  WorkerSaid said{1, {}};
  said.message.mutable_report()->set_epoch(coordinator.sent.back().form_group().epoch());
  said.message.mutable_report()->set_number(1);
  said.message.mutable_report()->mutable_group_formed();
  REQUIRE(coordinator.mailbox->Post(std::move(said)));
  while (coordinator.Step()) {
  }
  REQUIRE(coordinator.tasks.tasks.size() == 1);
  coordinator.solver.hurried = false;
  coordinator.loop.reset();
  coordinator.tasks.tasks.front()();
  CHECK(coordinator.solver.hurried);
}

TEST_CASE("the tokens of a dataset that is deleted are closed") {
  Coordinator coordinator;
  REQUIRE(coordinator.Call(NewModel("m")).ok());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
  REQUIRE(coordinator.Call(NewJob()).ok());
  CHECK_FALSE(coordinator.Call(Named<v1::DeleteDatasetRequest>("d")).ok());  // it is in use
  CHECK(coordinator.solver.closed.empty());
  REQUIRE(coordinator.Call(NewDataset(coordinator, "other")).ok());
  REQUIRE(coordinator.Call(Named<v1::DeleteDatasetRequest>("other")).ok());
  REQUIRE(coordinator.solver.closed.size() == 1);
  CHECK(coordinator.solver.closed[0].starts_with("datasets/other-"));
}

TEST_CASE("a store that fails for good ends the process") {
  Coordinator coordinator;
  coordinator.Settle();
  coordinator.store.failure = absl::InternalError("disk I/O error");
  coordinator.Ask(NewModel("m"));
  REQUIRE(coordinator.loop->Step().ok());
  CHECK(absl::IsInternal(coordinator.loop->Step().status()));
  CHECK(coordinator.answers.empty());
}

TEST_CASE("a report of a number that cannot be closes its worker, also while its group forms") {
  for (const int64_t number : {int64_t{-1}, int64_t{0}, std::numeric_limits<int64_t>::min()}) {
    Coordinator coordinator;
    REQUIRE(coordinator.Call(NewModel("m")).ok());
    REQUIRE(coordinator.Call(NewDataset(coordinator, "d")).ok());
    REQUIRE(coordinator.Call(NewJob()).ok());
    Connect(coordinator, 1);
    REQUIRE(coordinator.sent.back().has_form_group());
    WorkerSaid said{1, {}};
    said.message.mutable_report()->set_epoch(coordinator.sent.back().form_group().epoch());
    said.message.mutable_report()->set_number(number);
    said.message.mutable_report()->mutable_slot_freed();
    REQUIRE(coordinator.mailbox->Post(std::move(said)));
    coordinator.Settle();
    CHECK(coordinator.closed == std::vector<uint64_t>{1});
  }
}

}  // namespace
}  // namespace lorad::server
