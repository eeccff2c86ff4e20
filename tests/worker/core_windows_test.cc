// The worker's core and its windows: executed, cut, refused; saves, loads and frees in them.
#include <catch2/catch.hpp>

#include "storage/files/errors.h"
#include "tests/worker/core_script.h"

namespace lorad::worker {
namespace {

const absl::Status kAway = absl::UnavailableError("away");

TEST_CASE("a window is executed operation by operation and reported done") {
  Script s;
  s.Begin();
  CHECK(s.Hears(WindowOf(1, 1).Train(1, {"a"}).Step("a", 1)) == Lines{"begin window 1"});
  CHECK(s.Done() == Lines{"FORWARD 1"});
  CHECK(s.Hears(WindowOf(1, 2).Train(2, {"a"})).empty());
  CHECK(s.Done() == Lines{"BACKWARD 1"});
  CHECK(s.Done() == Lines{"STEP a 1"});
  CHECK(s.Done() == Lines{"end window"});
  CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 0 dropped", "begin window 2"});
  CHECK_FALSE(s.core().idle());
}

TEST_CASE("an operation of a job that has failed counts as dropped") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Step("a", 1));
  CHECK(s.Done() == Lines{"STEP a 1"});
  CHECK(s.Happens(EngineDone{false}) == Lines{"end window"});
  CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 1 dropped"});
}

TEST_CASE("a window of another epoch is ignored") {
  Script s;
  s.Begin();
  CHECK(s.Hears(WindowOf(2, 1).Step("a", 1)).empty());
  CHECK(s.Cut(2).empty());
  CHECK(s.CutAt(2, 1).empty());
  s.Dissolve(1);
  s.Done();
  CHECK(s.Hears(WindowOf(1, 1).Step("a", 1)).empty());
  CHECK(s.Hears(WindowOf(0, 1).Step("a", 1)).empty());
}

TEST_CASE("windows out of order, too many, or with microbatches that go back end the group") {
  const Lines failed = {"say 1.1 GroupFailed BAD_WINDOW", "cancel calls", "leave group"};
  for (const int64_t number : {-1, 0, 2, 7}) {
    Script s;
    s.Begin();
    CHECK(s.Hears(WindowOf(1, number)) == failed);
    CHECK(s.Done().empty());
    CHECK(s.Hears(WindowOf(1, 1)).empty());  // nothing of the epoch is executed any more
    CHECK(s.core().held().epoch == 1);
    CHECK(s.Form(2) == Lines{"form group of epoch 2"});
  }
  {
    Script s;
    s.Begin();
    s.Cut(1);  // holds them
    s.Hears(WindowOf(1, 1).Train(1, {"a"}));
    s.Done();
    for (int i = 2; i <= 16; ++i) CHECK(s.Hears(WindowOf(1, i)).empty());
    CHECK(s.Hears(WindowOf(1, 17)) == failed);
  }
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(2, {"a"}).Train(1, {"a"}));
  s.Done();
  s.Done();
  CHECK(s.Done() == failed);
}

TEST_CASE("what the engine refuses ends the group behind what it still had to say") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Step("a", 1).Step("b", 1));
  s.Done();
  CHECK(s.Fails(absl::InvalidArgumentError("no slot")) == Lines{"end window"});
  v1::Report report;
  report.mutable_step_done()->set_job("b");
  CHECK(s.Happens(EngineReported{report}) == Lines{"say 1.1 StepDone b 0"});
  CHECK(s.Done() == Lines{"say 1.2 GroupFailed BAD_WINDOW", "cancel calls", "leave group"});
  CHECK(s.Happens(EngineReported{report}).empty());
}

TEST_CASE("a cut holds what has not begun, then drops it and what follows from it") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(1, {"a"}).Train(2, {"b"}).Step("a", 1).Step("b", 1));
  CHECK(s.Done() == Lines{"FORWARD 1"});
  CHECK(s.Cut(1) == Lines{"say first not enqueued 2"});
  CHECK(s.Done() == Lines{"BACKWARD 1"});
  CHECK(s.Done().empty());
  s.Hears(WindowOf(1, 2).Train(3, {"a", "b"}).Step("a", 2));
  CHECK(s.CutAt(1, 2) == Lines{"STEP a 1"});
  CHECK(s.Done() == Lines{"end window, drop batch of b"});
  CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 3 dropped", "begin window 2"});
  CHECK(s.Done() == Lines{"end window, drop batch of a, drop batch of b"});
  CHECK(s.Done() == Lines{"say 1.2 WindowDone 2, 3 dropped"});
  // What comes later is not touched by it.
  s.Hears(WindowOf(1, 3).Train(4, {"a"}));
  CHECK(s.Done() == Lines{"FORWARD 4"});
  s.Done();
  CHECK(s.Done() == Lines{"end window"});
}

// Two windows of which the second brings c in a's place.
std::vector<v1::CoordinatorMessage> JoinAndLeave() {
  return {WindowOf(1, 1).Train(1, {"a", "b"}).Train(2, {"b"}).Step("a", 1).Step("b", 1),
          WindowOf(1, 2).Free("a").Load("c").Train(3, {"b", "c"}).Step("b", 2).Step("c", 1)};
}

// What is in a slot's place, or has been done to it, when all windows have ended.
struct Outcome {
  std::vector<std::string> executed;  // but for slots that are loaded and freed again
  std::set<std::string> loaded;

  bool operator==(const Outcome&) const = default;
};

// The stage has done `done` engine operations when the cut comes.
Outcome CutAfter(int done, int64_t first_dropped) {
  Script s;
  s.Begin();
  Outcome outcome;
  const auto note = [&](const Lines& lines) {
    for (const std::string& line : lines) {
      if (line.starts_with("LOAD_SLOT ")) outcome.loaded.insert(line.substr(10, 1));
      const bool undone =
          line.starts_with("FREE_SLOT ") && outcome.loaded.erase(line.substr(10, 1));
      const bool other = line.starts_with("FORWARD") || line.starts_with("BACKWARD") ||
                         line.starts_with("STEP") || line.starts_with("FREE_SLOT");
      if (other && !undone) outcome.executed.push_back(line);
    }
  };
  for (const v1::CoordinatorMessage& window : JoinAndLeave()) note(s.Hears(window));
  for (int i = 0; i < done; ++i) note(s.Done());
  note(s.CutAt(1, first_dropped));
  for (int i = 0; i < 30 && !s.core().idle(); ++i) note(s.Done());
  CHECK(s.core().idle());
  return outcome;
}

TEST_CASE("what a cut keeps does not depend on how far a stage has come") {
  // Operations of the engine up to the first Forward that the cut may drop: by then no stage has
  // gone further, for the first one has not.
  struct Case {
    int64_t first_dropped;
    int done_max;
    Outcome want;
  };
  const Case cases[] = {
      {1, 0, {{}, {}}},
      {2, 2, {{"FORWARD 1", "BACKWARD 1", "STEP a 1", "FREE_SLOT a 0"}, {}}},
      {3,
       10,
       {{"FORWARD 1", "BACKWARD 1", "FORWARD 2", "BACKWARD 2", "STEP a 1", "STEP b 1",
         "FREE_SLOT a 0"},
        {}}},
      {4,
       14,
       {{"FORWARD 1", "BACKWARD 1", "FORWARD 2", "BACKWARD 2", "STEP a 1", "STEP b 1",
         "FREE_SLOT a 0", "FORWARD 3", "BACKWARD 3", "STEP b 2", "STEP c 1"},
        {"c"}}},
  };
  for (const Case& c : cases) {
    for (int done = 0; done <= c.done_max; ++done) {
      INFO("first dropped " << c.first_dropped << ", after " << done);
      const Outcome outcome = CutAfter(done, c.first_dropped);
      CHECK(outcome.executed == c.want.executed);
      CHECK(outcome.loaded == c.want.loaded);
    }
  }
}

TEST_CASE("a window whose loads have begun answers a cut with its first microbatch") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Load("a").Train(1, {"a"}).Train(2, {"a"}));
  CHECK(s.Done() == Lines{"LOAD_SLOT a 0"});
  CHECK(s.Cut(1) == Lines{"say first not enqueued 2"});
  CHECK(s.Done() == Lines{"FORWARD 1"});
  CHECK(s.Done() == Lines{"BACKWARD 1"});
  CHECK(s.Done().empty());  // held
  CHECK(s.CutAt(1, 2) == Lines{"end window, drop batch of a"});
}

TEST_CASE("while a cut is being decided no load begins that it may drop") {
  Script s;
  s.Begin();
  CHECK(s.Cut(1) == Lines{"say first not enqueued 0"});
  s.Hears(WindowOf(1, 1).Load("a").Train(1, {"a"}));
  CHECK(s.Done().empty());
  CHECK(s.CutAt(1, 0) == Lines{"end window, drop batch of a"});
}

TEST_CASE("a cut may come before the window, and CutAt may let all of it run") {
  Script s;
  s.Begin();
  CHECK(s.Cut(1) == Lines{"say first not enqueued 0"});
  s.Hears(WindowOf(1, 1).Train(1, {"a"}));
  CHECK(s.Done().empty());
  CHECK(s.CutAt(1, 2) == Lines{"FORWARD 1"});
}

TEST_CASE("a group that is dissolved in mid-operation is left when that ends") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Train(1, {"a"}));
  s.Done();
  CHECK(s.Dissolve(1) == Lines{"cancel calls", "read memory"});
  CHECK(s.Form(2) == Lines{"cancel calls"});
  CHECK(s.Fails(absl::InvalidArgumentError("too late")) == Lines{"leave group"});
  CHECK(s.Done() == Lines{"form group of epoch 2"});
}

// ---- saves ----

TEST_CASE("a save goes up while training goes on") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Step("a", 1).Save("a", 1).Step("a", 2));
  s.Done();
  CHECK(s.Done() == Lines{"SAVE a 1"});
  CHECK(s.DoneStaged(4096) == Lines{"upload 1: a 1 within 15001 ms", "STEP a 2"});
  CHECK(s.Uploaded(1) == Lines{"say 1.1 Saved a 1"});
  CHECK(s.Uploaded(1).empty());
}

// The shard of job a's step 1 is on its way up.
void BeginUpload(Script& s) {
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1));
  s.Done();
  s.DoneStaged();
  s.Done();
}

TEST_CASE("an upload is tried again with growing pauses, and gets more time if it was late") {
  Script s;
  BeginUpload(s);
  absl::Status full = absl::UnavailableError("disk full");
  full.SetPayload("lorad/reason", absl::Cord("CHECKPOINT_NOT_WRITTEN"));
  for (const double pause_ms : {100, 200, 400, 800, 1600, 3200, 5000, 5000}) {
    INFO(pause_ms);
    CHECK(s.Uploaded(1, full).empty());
    CHECK(s.Wait(pause_ms - 1).empty());
    CHECK(s.Wait(1) == Lines{"upload 1: a 1 within 15000 ms"});
  }
  for (const int64_t timeout_ms : {30'000, 60'000, 120'000, 120'000}) {
    s.Uploaded(1, absl::DeadlineExceededError("late"));
    CHECK(s.Wait(5000) == Lines{absl::StrCat("upload 1: a 1 within ", timeout_ms, " ms")});
  }
  absl::Status unwanted = absl::FailedPreconditionError("not wanted any more");
  unwanted.SetPayload("lorad/reason", absl::Cord("STALE_EPOCH"));
  CHECK(s.Uploaded(1, unwanted).empty());
  CHECK(s.Wait(100'000).empty());
}

TEST_CASE("an upload that fails for ten seconds is told of once") {
  Script s;
  BeginUpload(s);
  const absl::Status refused = absl::FailedPreconditionError("the certificate is over");
  CHECK(s.Uploaded(1, refused).empty());
  s.Wait(9'999);
  CHECK(s.Uploaded(1, refused).empty());
  s.Wait(5'000);
  CHECK(s.Uploaded(1, refused) == Lines{"say 1.2 SaveDelayed a 1 the certificate is over"});
  s.Wait(5'000);
  CHECK(s.Uploaded(1, refused).empty());
  s.Wait(5'000);
  CHECK(s.Uploaded(1) == Lines{"say 1.3 Saved a 1"});
}

TEST_CASE("an upload whose first try runs out of time is told of then") {
  Script s;
  BeginUpload(s);
  s.Wait(15'000);
  CHECK(s.Uploaded(1, absl::DeadlineExceededError("no answer")) ==
        Lines{"say 1.2 SaveDelayed a 1 no answer"});
}

TEST_CASE("one job's upload does not hold up another's, and four go at once") {
  Script s;
  s.Begin();
  WindowOf window(1, 1);
  for (const char* job : {"a", "b", "c", "d", "e"}) window.Save(job, 1);
  s.Hears(window);
  s.Done();
  for (int i = 1; i <= 4; ++i) CHECK(s.DoneStaged().front().starts_with("upload"));
  CHECK(s.DoneStaged() == Lines{"end window"});  // e waits for its turn
  CHECK(s.Uploaded(3, kAway) == Lines{"upload 5: e 1 within 15000 ms"});
  CHECK(s.Wait(100).empty());
  CHECK(s.Uploaded(5) == Lines{"say 1.1 Saved e 1", "upload 3: c 1 within 15000 ms"});
}

TEST_CASE("a save that finds its staging memory in use comes at the next moment") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1).Step("a", 2).Save("a", 2).Train(1, {"a", "b"}).Step("a", 3));
  s.Done();
  s.DoneStaged();
  CHECK(s.Done() == Lines{"FORWARD 1"});  // SAVE a 2 is put off
  CHECK(s.Done() == Lines{"BACKWARD 1"});
  CHECK(s.Done().empty());  // STEP a 3 would overwrite what it is to copy
  CHECK(s.Uploaded(1) == Lines{"say 1.1 Saved a 1", "SAVE a 2"});
  CHECK(s.DoneStaged() == Lines{"upload 2: a 2 within 15000 ms", "STEP a 3"});
}

TEST_CASE("a step waits for a save that was put off no longer than the first try before it") {
  SECTION("which has failed") {
    Script s;
    s.Begin();
    s.Hears(WindowOf(1, 1).Save("a", 1).Step("a", 2).Save("a", 2).Step("a", 3));
    s.Done();
    s.DoneStaged();
    CHECK(s.Done().empty());
    CHECK(s.Uploaded(1, kAway) == Lines{"STEP a 3"});
    CHECK(s.Wait(100) == Lines{"upload 1: a 1 within 15000 ms"});
    s.Done();
    CHECK(s.Uploaded(1) == Lines{"say 1.1 Saved a 1"});  // step 2 is lost, never another's bytes
  }
  SECTION("which has run out of time, told of or not") {
    Script s;
    s.Begin();
    s.Hears(WindowOf(1, 1).Save("a", 1).Step("a", 2).Save("a", 2).Step("a", 3));
    s.Done();
    s.DoneStaged();
    CHECK(s.Done().empty());
    CHECK(s.Wait(14'999).empty());
    CHECK(s.Wait(1) == Lines{"STEP a 3"});
  }
}

TEST_CASE("the save of a last step is not lost while the one before is stuck") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1).Step("a", 2).Save("a", 2));
  s.Done();
  s.DoneStaged();
  CHECK(s.Done() == Lines{"end window"});
  CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 0 dropped"});
  for (int i = 0; i < 20; ++i) {
    s.Uploaded(1, kAway);
    s.Wait(5000);
  }
  CHECK(s.Uploaded(1) == Lines{"say 1.3 Saved a 1", "SAVE a 2"});
  CHECK(s.DoneStaged() == Lines{"upload 2: a 2 within 15000 ms"});
  // Asked again for what is on its way: once is enough.
  CHECK(s.Hears(WindowOf(1, 2).Save("a", 2)) == Lines{"begin window 2"});
  CHECK(s.Done() == Lines{"end window"});
  s.Done();
  CHECK(s.Uploaded(2) == Lines{"say 1.5 Saved a 2"});
}

TEST_CASE("a slot is freed behind its save, and its neighbours' operations do not wait") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1).Free("a").Step("b", 1));
  s.Done();
  CHECK(s.DoneStaged() == Lines{"upload 1: a 1 within 15000 ms", "STEP b 1"});
  CHECK(s.Done().empty());
  CHECK(s.Uploaded(1) == Lines{"say 1.1 Saved a 1", "FREE_SLOT a 0"});
  CHECK(s.Done() == Lines{"end window"});
}

TEST_CASE("a slot that is to be freed has its save tried no second time") {
  SECTION("the try under way is the last") {
    Script s;
    s.Begin();
    s.Hears(WindowOf(1, 1).Save("a", 1).Free("a"));
    s.Done();
    s.DoneStaged();
    CHECK(s.Uploaded(1, absl::DeadlineExceededError("never answered")) == Lines{"FREE_SLOT a 0"});
  }
  SECTION("one that waits for another try is given up") {
    Script s;
    s.Begin();
    s.Hears(WindowOf(1, 1).Save("a", 1));
    s.Done();
    s.DoneStaged();
    s.Done();
    s.Uploaded(1, kAway);
    s.Hears(WindowOf(1, 2).Free("a"));
    CHECK(s.Done() == Lines{"FREE_SLOT a 0"});
    CHECK(s.Wait(10'000).empty());
  }
}

TEST_CASE("a save that was put off is not made once its slot is to be freed") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1).Step("a", 2).Save("a", 2).Free("a"));
  s.Done();
  s.DoneStaged();
  CHECK(s.Done().empty());
  CHECK(s.Uploaded(1) == Lines{"say 1.1 Saved a 1", "FREE_SLOT a 0"});
}

TEST_CASE("no upload reads the memory of a group that is left") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Save("a", 1));
  s.Done();
  s.DoneStaged();
  s.Done();
  CHECK(s.Form(2) == Lines{"cancel calls"});
  CHECK(s.Uploaded(1, absl::CancelledError("left")) == Lines{"leave group"});
  CHECK(s.Done() == Lines{"form group of epoch 2"});
  CHECK(s.Wait(10'000).empty());
}

// ---- loads ----

TEST_CASE("a load whose content is not to be had is tried for ten seconds, then fails alone") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Load("a").Step("b", 1));
  CHECK(s.Done() == Lines{"LOAD_SLOT a 0"});
  for (int i = 0; i < 49; ++i) {
    CHECK(s.Fails(kAway).empty());
    CHECK(s.Wait(200) == Lines{"LOAD_SLOT a 0"});
  }
  CHECK(s.Fails(kAway) == Lines{"say 1.1 SlotFailed a CONTENT_UNAVAILABLE", "STEP b 1"});
}

TEST_CASE("a load that is waited for can be cut and left") {
  Script s;
  s.Begin();
  s.Hears(WindowOf(1, 1).Load("a").Train(1, {"b"}));
  s.Done();
  SECTION("between two tries") {
    s.Fails(kAway);
    CHECK(s.Cut(1) == Lines{"say first not enqueued 0"});
    CHECK(s.CutAt(1, 0) == Lines{"end window, drop batch of a, drop batch of b"});
    CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 3 dropped"});
  }
  SECTION("in a try: the window's first microbatch runs too") {
    CHECK(s.Cut(1) == Lines{"say first not enqueued 2"});
    s.CutAt(1, 2);
    CHECK(s.Fails(kAway).empty());
    CHECK(s.Wait(200) == Lines{"LOAD_SLOT a 0"});
    CHECK(s.Done() == Lines{"FORWARD 1"});
  }
  SECTION("in a try of a stage that is ahead of the first one") {
    s.CutAt(1, 1);
    CHECK(s.Fails(kAway) == Lines{"end window, drop batch of a, drop batch of b"});
    CHECK(s.Done() == Lines{"say 1.1 WindowDone 1, 3 dropped"});
  }
  SECTION("left") {
    CHECK(s.Dissolve(1) == Lines{"cancel calls", "read memory"});
    CHECK(s.Fails(absl::UnavailableError("cancelled")) == Lines{"leave group"});
  }
}

}  // namespace
}  // namespace lorad::worker
