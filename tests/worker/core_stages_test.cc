// The worker's core as one stage of several: formed in two phases, cut, lost.
#include <algorithm>
#include <catch2/catch.hpp>

#include "storage/files/errors.h"
#include "tests/worker/core_script.h"

namespace lorad::worker {
namespace {

const absl::Status kLost = storage::WithReason(absl::StatusCode::kUnavailable, "STAGE_LOST",
                                               "stage 0: it has closed the connection");

// Stage 1 of 3 of epoch 1, joined with the others.
void Join(Script* s) {
  s->Happens(Started{});
  s->Welcome(false);
  s->FormStages(1, 3);
  s->Done();
  s->Connect(1, 3);
  s->Done();
}

TEST_CASE("a stage is formed, then connected, then has its windows") {
  Script s;
  s.Happens(Started{});
  s.Welcome(false, 4'000);
  CHECK(s.FormStages(1, 3) == Lines{"form group of epoch 1"});
  CHECK(s.Done().empty());
  CHECK(s.core().idle());
  CHECK(s.Connect(1, 3) == Lines{"connect 3 stages, lease 4000 ms"});
  CHECK_FALSE(s.core().idle());
  s.Wait(250);
  CHECK(s.Done() == Lines{"say 1.1 Connected in 0.25 s"});
  CHECK(s.Hears(WindowOf(1, 1).Pass(1, {"a"})) == Lines{"begin window 1"});
  CHECK(s.Done() == Lines{"RECV 1"});
}

TEST_CASE("Connect may come before the engine has answered, and waits for it") {
  Script s;
  s.Happens(Started{});
  s.Welcome(false);
  s.FormStages(1, 3);
  CHECK(s.Connect(1, 3).empty());
  CHECK(s.Done() == Lines{"connect 3 stages, lease 10000 ms"});
}

TEST_CASE("a Connect of another epoch is ignored; an impossible one ends the group") {
  const Lines failed = {"say 1.1 GroupFailed BAD_WINDOW", "cancel calls", "leave group"};
  Script of_one;
  of_one.Begin();
  CHECK(of_one.Connect(2, 1).empty());
  CHECK(of_one.Connect(1, 1) == failed);
  for (const int endpoints : {0, 2, 4}) {
    Script s;
    s.Happens(Started{});
    s.Welcome(false);
    s.FormStages(1, 3);
    s.Done();
    CHECK(s.Connect(2, 3).empty());
    CHECK(s.Connect(1, endpoints) == failed);
    CHECK(s.Connect(1, 3).empty());  // nothing of the epoch is done any more
  }
  Script twice;
  Join(&twice);
  CHECK(twice.Connect(1, 3) ==
        Lines{"say 1.2 GroupFailed BAD_WINDOW", "cancel calls", "leave group"});
}

TEST_CASE("a window that comes before Connected ends the group") {
  for (const bool ordered : {false, true}) {
    Script s;
    s.Happens(Started{});
    s.Welcome(false);
    s.FormStages(1, 3);
    s.Done();
    if (ordered) s.Connect(1, 3);
    const Lines lines = s.Hears(WindowOf(1, 1).Pass(1, {"a"}));
    REQUIRE(lines.size() >= 2);
    CHECK(lines[0] == "say 1.1 GroupFailed BAD_WINDOW");
    CHECK(lines[1] == "cancel calls");
  }
}

TEST_CASE("a stage that cannot be reached is lost, with what the transport says") {
  Script s;
  s.Happens(Started{});
  s.Welcome(false);
  s.FormStages(1, 3);
  s.Done();
  s.Connect(1, 3);
  CHECK(s.Fails(absl::DeadlineExceededError("stage 2 has not connected")) ==
        Lines{"say 1.1 GroupFailed STAGE_LOST", "cancel calls", "leave group"});
  s.Done();
  CHECK(s.core().held().epoch == 1);  // until its report is acknowledged
  CHECK(s.FormStages(2, 3) == Lines{"form group of epoch 2"});
  CHECK(s.Done().empty());
  CHECK(s.Connect(2, 3) ==
        Lines{"connect 3 stages, lease 10000 ms"});  // another epoch, another way
}

TEST_CASE("a stage that goes in mid-window is lost, and no window is to blame") {
  Script s;
  Join(&s);
  s.Hears(WindowOf(1, 1).Pass(1, {"a"}).Pass(2, {"a"}));
  CHECK(s.Done() == Lines{"RECV 1"});
  CHECK(s.Fails(kLost) == Lines{"end window"});
  CHECK(s.Done() == Lines{"say 1.2 GroupFailed STAGE_LOST", "cancel calls", "leave group"});
}

TEST_CASE("a group that is given up does not wait for its other stages") {
  SECTION("while it is connected") {
    Script s;
    s.Happens(Started{});
    s.Welcome(false);
    s.FormStages(1, 3);
    s.Done();
    s.Connect(1, 3);
    CHECK(s.Dissolve(1) == Lines{"cancel calls", "read memory"});
    CHECK(s.Fails(absl::CancelledError("interrupted")) == Lines{"leave group"});
    CHECK(s.Done().empty());
  }
  SECTION("before it is: Connect is forgotten") {
    Script s;
    s.Happens(Started{});
    s.Welcome(false);
    s.FormStages(1, 3);
    s.Connect(1, 3);
    CHECK(s.Dissolve(1) == Lines{"cancel calls", "read memory"});
    CHECK(s.Done() == Lines{"leave group"});
    CHECK(s.Done().empty());
  }
  SECTION("in mid-window, by whatever ends it") {
    for (const char* how : {"dissolved", "closed", "lease", "stopped"}) {
      INFO(how);
      Script s;
      Join(&s);
      s.Hears(WindowOf(1, 1).Pass(1, {"a"}));
      s.Done();  // stands in the Recv
      Lines lines;
      if (how == std::string("dissolved")) lines = s.Dissolve(1);
      if (how == std::string("closed")) lines = s.Breaks(absl::AbortedError("WORKER_CLOSED"));
      if (how == std::string("stopped")) lines = s.Happens(StopRequested{.at_once = true});
      if (how == std::string("lease")) {
        s.Breaks();
        lines = s.Wait(20'000);
      }
      CHECK(std::count(lines.begin(), lines.end(), "cancel calls") == 1);
      if (how != std::string("stopped")) {
        CHECK(s.Fails(absl::CancelledError("given up")) == Lines{"leave group"});
      }
    }
  }
}

TEST_CASE("a cut ends the Recv of a microbatch that is never sent, once") {
  Script s;
  Join(&s);
  s.Hears(WindowOf(1, 1).Pass(1, {"a"}).Pass(2, {"b"}).Step("a", 1));
  CHECK(s.Done() == Lines{"RECV 1"});
  SECTION("it is one of those that are kept") {
    CHECK(s.CutAt(1, 2).empty());
    CHECK(s.Done() == Lines{"FORWARD 1"});
    CHECK(s.Done() == Lines{"SEND 1"});
    CHECK(s.Done() == Lines{"STEP a 1"});
  }
  SECTION("it is dropped") {
    CHECK(s.CutAt(1, 1) == Lines{"give up receive"});
    CHECK(s.CutAt(1, 1).empty());  // another cut, before the engine has answered
    CHECK(s.Happens(EngineDone{false}) == Lines{"end window, drop batch of a, drop batch of b"});
    CHECK(s.Done() == Lines{"say 1.2 WindowDone 1, 7 dropped"});
    CHECK(s.Hears(WindowOf(1, 2).Pass(3, {"a"})) == Lines{"begin window 2"});
    CHECK(s.Done() == Lines{"RECV 3"});
  }
}

}  // namespace
}  // namespace lorad::worker
