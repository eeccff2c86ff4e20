// The worker's core and its coordinator: dialled, heard, lost, found again.
#include <catch2/catch.hpp>

#include "storage/files/errors.h"
#include "tests/worker/core_script.h"

namespace lorad::worker {
namespace {

v1::Report StepDone(const std::string& job, int64_t step) {
  v1::Report report;
  report.mutable_step_done()->set_job(job);
  report.mutable_step_done()->set_step(step);
  return report;
}

v1::CoordinatorMessage Acknowledge(int64_t epoch, int64_t number) {
  v1::CoordinatorMessage message;
  message.mutable_acknowledge()->set_epoch(epoch);
  message.mutable_acknowledge()->set_number(number);
  return message;
}

TEST_CASE("it dials, is welcomed, beats and forms its group") {
  Script s;
  CHECK(s.Happens(Started{}) == Lines{"dial 1, epoch 0"});
  CHECK(s.Welcome(false) == Lines{"read memory"});
  CHECK(s.Happens(MemoryRead{5, 6}) == Lines{"say heartbeat of epoch 0"});
  CHECK(s.Form(1) == Lines{"form group of epoch 1"});
  CHECK(s.core().held().epoch == 1);
  CHECK(s.Done().empty());
  CHECK(s.core().idle());
}

TEST_CASE("a broken stream is dialled again with growing pauses") {
  Script s;
  s.Happens(Started{});
  for (const double pause_ms : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    INFO(pause_ms);
    CHECK(s.Breaks().empty());
    CHECK(s.Wait(pause_ms - 1).empty());
    CHECK(s.Wait(1) == Lines{absl::StrCat("dial ", s.stream, ", epoch 0")});
  }
  s.Welcome(false);
  s.Breaks();
  CHECK(s.Wait(100).size() == 1);
}

TEST_CASE("a coordinator that does not welcome it, or twice, is hung up on") {
  Script s;
  s.Happens(Started{});
  CHECK(s.Wait(9999).empty());
  CHECK(s.Wait(1) == Lines{"hang up 1"});
  CHECK(s.Welcome(true).empty());  // too late
  s.Breaks();
  s.Wait(100);
  CHECK(s.Form(1) == Lines{"hang up 2"});
  CHECK(s.core().held().epoch == 0);
  s.Breaks();
  s.Wait(200);
  s.Welcome(true);
  CHECK(s.Welcome(true) == Lines{"hang up 3"});
  CHECK(s.Form(1).empty());
}

TEST_CASE("what an older stream brings does not count") {
  Script s;
  s.Begin();
  s.Breaks();
  s.Wait(100);
  s.Welcome(true);
  s.stream = 1;
  CHECK(s.Dissolve(1).empty());
  CHECK(s.Breaks().empty());
  CHECK(s.core().held().epoch == 1);
}

TEST_CASE("a refusal for good ends it, a name that is taken does not") {
  for (const absl::Status& passing :
       {absl::UnavailableError("WORKER_NAME_TAKEN"), absl::AlreadyExistsError("name"),
        absl::AbortedError("WORKER_CLOSED"), absl::ResourceExhaustedError("streams")}) {
    Script s;
    s.Happens(Started{});
    CHECK(s.Breaks(passing).empty());
    CHECK(s.Wait(100) == Lines{"dial 2, epoch 0"});
  }
  for (const absl::Status& final :
       {absl::FailedPreconditionError("version"), absl::InvalidArgumentError("hello"),
        absl::PermissionDeniedError("user"), absl::UnimplementedError("service")}) {
    Script s;
    s.Happens(Started{});
    CHECK(s.Breaks(final) == Lines{"cancel calls", "end: " + final.ToString()});
    CHECK(s.Wait(100'000).empty());
  }
}

TEST_CASE("reports are told again on the next stream until they are acknowledged") {
  Script s;
  s.Begin();
  CHECK(s.Happens(EngineReported{StepDone("a", 1)}) == Lines{"say 1.1 StepDone a 1"});
  s.Happens(EngineReported{StepDone("a", 2)});
  s.Breaks();
  CHECK(s.Happens(EngineReported{StepDone("a", 3)}).empty());
  CHECK(s.Wait(100) == Lines{"dial 2, epoch 1"});
  CHECK(s.Welcome(true) == Lines{"say 1.1 StepDone a 1", "say 1.2 StepDone a 2",
                                 "say 1.3 StepDone a 3", "read memory"});
  s.Hears(Acknowledge(1, 2));
  s.Hears(Acknowledge(7, 3));
  CHECK(s.core().reports_kept() == 1);
  s.Breaks();
  s.Wait(100);
  CHECK(s.Welcome(true) == Lines{"say 1.3 StepDone a 3", "read memory"});
}

TEST_CASE("what a new coordinator does not want is given up") {
  Script s;
  s.Begin();
  s.Happens(EngineReported{StepDone("a", 1)});
  s.Breaks();
  s.Wait(100);
  CHECK(s.Welcome(false) == Lines{"cancel calls", "read memory", "leave group"});
  CHECK(s.core().held().epoch == 0);
  CHECK(s.core().reports_kept() == 0);
  CHECK(s.Happens(EngineReported{StepDone("a", 2)}).empty());
  // A new data directory counts its epochs from 1 again.
  CHECK(s.Form(1) == Lines{"cancel calls"});
  CHECK(s.Done() == Lines{"form group of epoch 1"});
}

TEST_CASE("a group is kept for one lease without a coordinator, however long a dial takes") {
  Script s;
  s.Begin();
  s.Breaks();
  CHECK(s.Wait(100) == Lines{"dial 2, epoch 1"});
  CHECK(s.Wait(9899).empty());
  CHECK(s.core().held().epoch == 1);
  CHECK(s.Wait(1) == Lines{"cancel calls", "leave group"});
  CHECK(s.core().held().epoch == 0);
}

TEST_CASE("a Hello says what is held: the group, its stage, the newest report and window") {
  Script s;
  const auto dial = [&] {
    v1::Hello hello;
    for (const Effect& effect : s.Effects(100)) {
      if (const auto* dialled = std::get_if<Dial>(&effect)) hello = dialled->hello;
    }
    return hello;
  };
  s.Happens(Started{});
  s.Welcome(false);
  s.FormStages(7, 3);
  s.Done();
  s.Connect(7, 3);
  s.Done();
  s.Hears(WindowOf(7, 1));
  s.Hears(WindowOf(7, 2));
  s.Happens(EngineReported{StepDone("a", 1)});
  s.Breaks();
  const v1::Hello hello = dial();
  CHECK(hello.group() == "g");
  CHECK(hello.epoch() == 7);
  CHECK(hello.stage() == 1);
  CHECK(hello.stages() == 3);
  CHECK(hello.last_report() == 2);  // Connected, StepDone
  CHECK(hello.last_window() == 2);
}

TEST_CASE("a coordinator that counts on a group which is given up meanwhile is hung up on") {
  Script s;
  s.Begin();
  s.Breaks();
  CHECK(s.Wait(100) == Lines{"dial 2, epoch 1"});
  CHECK(s.Wait(9900) == Lines{"cancel calls", "leave group"});
  CHECK(s.Welcome(true) == Lines{"hang up 2"});
  s.Breaks();
  s.Done();
  CHECK(s.Wait(1000) == Lines{"dial 3, epoch 0"});
  CHECK(s.Welcome(true) == Lines{"read memory"});  // that it holds nothing it has said
}

TEST_CASE("without a coordinator nothing is loaded or uploaded, and the rest goes on") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1).Step("b", 1).Load("c").Step("b", 2));
  s.Done();
  s.Breaks();
  CHECK(s.DoneStaged() == Lines{"STEP b 1"});
  CHECK(s.Done().empty());
  CHECK(s.Wait(100) == Lines{"dial 2, epoch 1"});
  CHECK(s.Wait(3000).empty());
  CHECK(s.Welcome(true) == Lines{"read memory", "upload 1: a 1 within 15000 ms", "LOAD_SLOT c 0"});
}

TEST_CASE("a coordinator that stands still is waited for as long as its stream stands") {
  Script s;
  s.Begin();
  CHECK(s.Wait(3'600'000).empty());
  CHECK(s.core().held().epoch == 1);
}

TEST_CASE("a worker that cannot tell anybody stops at a bound") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(1, {"a"}));
  for (int i = 0; i < 65536; ++i) s.Happens(EngineReported{StepDone("a", i)});
  CHECK(s.Done().empty());
  CHECK(s.Hears(Acknowledge(1, 1)) == Lines{"FORWARD 1"});
}

TEST_CASE("groups: formed one after the other, failed with the engine's reason") {
  Script s;
  s.Begin();
  CHECK(s.Form(2) == Lines{"cancel calls", "leave group"});
  CHECK(s.Form(3) == Lines{"cancel calls"});  // before the engine has answered
  CHECK(s.Done() == Lines{"form group of epoch 3"});
  CHECK(s.Form(3).empty());
  CHECK(s.Form(2).empty());
  CHECK(s.Fails(absl::NotFoundError("no model")) == Lines{"say 3.1 GroupFailed GROUP_FORM"});
  CHECK(s.core().held().epoch == 3);  // until its report is acknowledged
  CHECK(s.Dissolve(2).empty());
  CHECK(s.Dissolve(3) == Lines{"read memory"});
  CHECK(s.core().held().epoch == 0);
  CHECK(s.Form(4) == Lines{"form group of epoch 4"});
}

TEST_CASE("who was closed gives its group up, and dials once its engine has left it") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(1, {"a"}));
  s.Done();  // the window is begun
  CHECK(s.Breaks(absl::AbortedError("WORKER_CLOSED")) == Lines{"cancel calls"});
  CHECK(s.core().held().epoch == 0);
  CHECK(s.Wait(50'000).empty());
  CHECK(s.Done() == Lines{"leave group"});
  CHECK(s.Done() == Lines{"dial 2, epoch 0"});
}

TEST_CASE("an engine that hangs ends the process, whoever gave its group up") {
  for (const bool closed : {true, false}) {
    Script s;
    s.Begin();
    s.Hears(WindowOf(1, 1).Train(1, {"a"}));
    s.Done();
    if (closed) {
      s.Breaks(absl::AbortedError("WORKER_CLOSED"));
    } else {
      s.Dissolve(1);
    }
    CHECK(s.Wait(59'999).empty());
    const Lines end = s.Wait(1);
    REQUIRE_FALSE(end.empty());
    CHECK(end.back().starts_with("end: INTERNAL: its engine hangs"));
  }
}

v1::CoordinatorMessage Shutdown() {
  v1::CoordinatorMessage shutdown;
  shutdown.mutable_shutdown()->set_reason("over");
  return shutdown;
}

TEST_CASE("Shutdown and a second signal end it, and nothing follows") {
  const Lines end{"cancel calls", "end: OK"};
  Script s;
  s.Begin();
  CHECK(s.Happens(StopRequested{}) == Lines{"say that it leaves"});
  CHECK(s.Happens(StopRequested{}).empty());  // at the same moment: the same one
  s.Wait(1000);
  CHECK(s.Happens(StopRequested{}) == end);
  CHECK(s.Happens(StopRequested{}).empty());
  Script t;
  t.Begin();
  CHECK(t.Hears(Shutdown()) == end);
  Script u;
  u.Begin();
  CHECK(u.Happens(StopRequested{.at_once = true}) == end);
}

TEST_CASE("told to end, it goes on until it is let go, for its grace period at most") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(1, {"a"}));
  CHECK(s.Happens(StopRequested{}) == Lines{"say that it leaves"});
  CHECK(s.Done() == Lines{"FORWARD 1"});  // the window is begun
  SECTION("it is let go") { CHECK(s.Hears(Shutdown()) == Lines{"cancel calls", "end: OK"}); }
  SECTION("the coordinator is lost: it may be back before the group is given up") {
    CHECK(s.Breaks().empty());
    const Lines welcomed = [&] {
      s.Wait(1000);
      return s.Welcome(true);
    }();
    CHECK(std::ranges::count(welcomed, "say that it leaves") == 1);
    CHECK(s.Hears(Shutdown()) == Lines{"cancel calls", "end: OK"});
  }
  SECTION("the coordinator is lost for good") {
    s.Breaks();
    Lines lines;
    for (int i = 0; i < 10 && lines.empty(); ++i) {
      for (const std::string& line : s.Wait(1000)) {
        if (line.starts_with("end")) lines.push_back(line);
      }
    }
    CHECK(lines == Lines{"end: OK"});
  }
  SECTION("nothing comes") {
    for (const std::string& line : s.Wait(19'999)) CHECK(line == "read memory");
    CHECK(s.Wait(1) == Lines{"cancel calls", "end: OK"});
  }
}

TEST_CASE("told to end before the Welcome, it says so behind it") {
  Script s;
  s.Happens(Started{});
  CHECK(s.Happens(StopRequested{}).empty());
  SECTION("which comes") { CHECK(s.Welcome(false).front() == "say that it leaves"); }
  SECTION("which does not") { CHECK(s.Breaks() == Lines{"cancel calls", "end: OK"}); }
}

TEST_CASE("told to end without a coordinator it waits for one, if it has a group") {
  Script s;
  s.Begin();
  s.Breaks();
  CHECK(s.Happens(StopRequested{}).empty());
  s.Wait(1000);
  const Lines welcomed = s.Welcome(true);
  CHECK(std::ranges::count(welcomed, "say that it leaves") == 1);
  Script t;
  t.Happens(Started{});
  t.Breaks();
  CHECK(t.Happens(StopRequested{}) == Lines{"cancel calls", "end: OK"});
}

TEST_CASE("told to end without a grace period, it says so and does at once") {
  Script s(/*grace_ms=*/0);
  s.Begin();
  CHECK(s.Happens(StopRequested{}) == Lines{"say that it leaves", "cancel calls", "end: OK"});
}

TEST_CASE("a reason that the coordinator gave is told once") {
  Script s;
  s.Happens(Started{});
  s.Welcome(false);
  s.Form(1);
  std::string told;
  const absl::Status refused = storage::WithReason(absl::StatusCode::kFailedPrecondition,
                                                   "MODEL_CHANGED", "MODEL_CHANGED: the files");
  for (const Effect& effect : s.core().Apply({0, EngineDone{refused}})) {
    const auto* said = std::get_if<Say>(&effect);
    if (said == nullptr) continue;
    const v1::GroupFailed& failed = said->message.report().group_failed();
    told = failed.reason() + ": " + failed.message();
  }
  CHECK(told == "MODEL_CHANGED: the files");
}

}  // namespace
}  // namespace lorad::worker
