#include "worker/core/plan_cut.h"

#include <catch2/catch.hpp>

namespace lorad::worker {
namespace {

using Kind = v1::Operation;

void Add(v1::Window* window, v1::Operation::Kind kind, int64_t microbatch) {
  v1::Operation& operation = *window->add_operations();
  operation.set_kind(kind);
  operation.set_microbatch(microbatch);
}

void Add(v1::Window* window, v1::Operation::Kind kind, const std::string& job) {
  v1::Operation& operation = *window->add_operations();
  operation.set_kind(kind);
  operation.set_job(job);
}

void AddMicrobatch(v1::Window* window, int64_t number, const std::vector<std::string>& jobs) {
  v1::Microbatch& microbatch = *window->add_microbatches();
  microbatch.set_number(number);
  for (const std::string& job : jobs) microbatch.add_segments()->set_job(job);
}

// LOAD b; F3 B3 (a, b); F4 B4 (b); then the steps of a and b with their saves; FREE a.
v1::Window TwoJobs() {
  v1::Window window;
  AddMicrobatch(&window, 3, {"a", "b"});
  AddMicrobatch(&window, 4, {"b"});
  Add(&window, Kind::LOAD_SLOT, "b");
  for (const int64_t microbatch : {3, 4}) {
    Add(&window, Kind::FORWARD, microbatch);
    Add(&window, Kind::BACKWARD, microbatch);
  }
  for (const char* job : {"a", "b"}) {
    for (const auto kind : {Kind::NORM_UP, Kind::CLIP_DOWN, Kind::STEP, Kind::SAVE}) {
      Add(&window, kind, job);
    }
  }
  Add(&window, Kind::FREE_SLOT, "a");
  return window;
}

std::string Text(const std::vector<bool>& kept) {
  std::string text;
  for (const bool keep : kept) text += keep ? '1' : '0';
  return text;
}

TEST_CASE("a cut keeps what follows from the microbatches before it") {
  struct Case {
    const char* what;
    int64_t first_dropped;
    const char* kept;  // LOAD F3B3F4B4 a:NCSV b:NCSV FREE
    std::set<std::string> cut_jobs;
    bool room;
  };
  const Case cases[] = {
      {"all is before the cut", 5, "11111111111111", {}, false},
      {"b is cut in mid-batch", 4, "11100111100001", {"b"}, false},
      {"nothing has begun", 3, "00000000000000", {"a", "b"}, true},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CutLosses losses;
    CHECK(Text(KeptAfterCut(TwoJobs(), c.first_dropped, {}, &losses)) == c.kept);
    CHECK(losses.jobs == c.cut_jobs);
    CHECK(losses.room == c.room);
  }
}

TEST_CASE("what generates is dropped by its microbatch, and the model itself loses nothing") {
  v1::Window window;
  AddMicrobatch(&window, 3, {"a"});
  AddMicrobatch(&window, 4, {"", "b"});
  window.mutable_microbatches(1)->mutable_segments(0)->mutable_sampling()->set_base(true);
  for (const int64_t microbatch : {3, 4}) Add(&window, Kind::GENERATE, microbatch);
  Add(&window, Kind::FREE_SLOT, std::string("a"));
  Add(&window, Kind::FREE_SLOT, std::string("b"));
  CutLosses losses;
  CHECK(Text(KeptAfterCut(window, 4, {}, &losses)) == "1010");
  CHECK(losses.jobs == std::set<std::string>{"b"});
  losses = {};
  CHECK(Text(KeptAfterCut(window, 3, {}, &losses)) == "0000");
  losses = {};
  CHECK(Text(KeptAfterCut(window, 5, {}, &losses)) == "1111");
}

TEST_CASE("a job that is cut in one window stays cut in the next") {
  CutLosses losses = {.jobs = {"b"}};
  v1::Window next;
  Add(&next, Kind::SAVE, std::string("b"));
  Add(&next, Kind::FREE_SLOT, std::string("a"));
  CHECK(Text(KeptAfterCut(next, 4, {}, &losses)) == "01");
}

TEST_CASE("a slot is loaded where its window begins, and the room for it is there") {
  v1::Window window;
  Add(&window, Kind::FREE_SLOT, std::string("a"));
  Add(&window, Kind::LOAD_SLOT, std::string("b"));
  CutLosses losses;
  CHECK(Text(KeptAfterCut(window, 4, {}, &losses)) == "11");
  losses = {.jobs = {"a"}};  // keeps its slot, so b's place is taken
  CHECK(Text(KeptAfterCut(window, 4, {}, &losses)) == "00");
  CHECK(losses.jobs == std::set<std::string>{"a", "b"});
  AddMicrobatch(&window, 4, {"b"});
  losses = {};
  CHECK(Text(KeptAfterCut(window, 4, {}, &losses)) == "10");
  losses = {};
  CHECK(Text(KeptAfterCut(window, 5, {}, &losses)) == "11");
}

TEST_CASE("what an earlier cut dropped is no loss to the next one") {
  CutLosses losses;
  const std::vector<bool> first = KeptAfterCut(TwoJobs(), 4, {}, &losses);
  losses = {};
  CHECK(KeptAfterCut(TwoJobs(), 4, first, &losses) == first);
  CHECK(losses.jobs.empty());
  v1::Window next;  // b comes again
  Add(&next, Kind::FREE_SLOT, std::string("b"));
  CHECK(Text(KeptAfterCut(next, 4, {}, &losses)) == "1");
}

}  // namespace
}  // namespace lorad::worker
