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
    int next;
    int64_t first_dropped;
    const char* kept;  // LOAD F3B3F4B4 a:NCSV b:NCSV FREE
    std::set<std::string> cut_jobs;
  };
  const Case cases[] = {
      {"all before the cut, load done", 1, 5, "1111111111111", {}},
      {"b is cut in mid-batch", 1, 4, "1100111100001", {"b"}},
      {"the same, with microbatch 3 behind us", 3, 4, "00111100001", {"b"}},
      {"nothing has begun", 0, 3, "00000000000000", {"a", "b"}},
      {"between the steps", 9, 4, "11111", {}},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    std::set<std::string> cut_jobs;
    CHECK(Text(KeptAfterCut(TwoJobs(), c.next, c.first_dropped, &cut_jobs)) == c.kept);
    CHECK(cut_jobs == c.cut_jobs);
  }
}

TEST_CASE("a job that is cut in one window stays cut in the next") {
  std::set<std::string> cut_jobs = {"b"};
  v1::Window next;
  Add(&next, Kind::SAVE, std::string("b"));
  Add(&next, Kind::FREE_SLOT, std::string("a"));
  CHECK(Text(KeptAfterCut(next, 0, 4, &cut_jobs)) == "01");
}

}  // namespace
}  // namespace lorad::worker
