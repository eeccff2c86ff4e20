// What a cut keeps of the lists of several stages whose windows run on: the same on each, whatever
// it has done already.
#include <catch2/catch.hpp>
#include <set>
#include <string>
#include <vector>

#include "tests/worker/stages.h"
#include "worker/core/plan_cut.h"

namespace lorad::worker {
namespace {

void Add(v1::Window* window, v1::Operation::Kind kind, const std::string& job, int64_t step) {
  v1::Operation& operation = *window->add_operations();
  operation.set_kind(kind);
  operation.set_job(job);
  operation.set_step(step);
}

// A row of each of these jobs, in a microbatch.
void AddMicrobatch(v1::Window* window, int64_t number, const std::vector<std::string>& jobs,
                   const std::vector<int64_t>& steps) {
  v1::Microbatch& microbatch = *window->add_microbatches();
  microbatch.set_number(number);
  for (size_t i = 0; i < jobs.size(); ++i) {
    v1::Segment& segment = *microbatch.add_segments();
    segment.set_job(jobs[i]);
    segment.set_mode(v1::Segment::TRAIN);
    segment.set_step(steps[i]);
    segment.set_sequence(number);
    segment.add_input_ids(1);
  }
}

// Two windows of one stage: "b" leaves in the second one, and "c" joins.
std::vector<v1::Window> TwoWindows() {
  std::vector<v1::Window> windows(2);
  AddMicrobatch(&windows[0], 1, {"a", "b"}, {1, 1});
  AddMicrobatch(&windows[0], 2, {"b"}, {1});
  AddMicrobatch(&windows[0], 3, {"a"}, {1});
  for (const char* job : {"b", "a"}) {
    Add(&windows[0], v1::Operation::STEP, job, 1);
    Add(&windows[0], v1::Operation::SAVE, job, 1);
  }
  Add(&windows[1], v1::Operation::FREE_SLOT, "b", 0);
  Add(&windows[1], v1::Operation::LOAD_SLOT, "c", 0);
  AddMicrobatch(&windows[1], 4, {"a"}, {2});
  AddMicrobatch(&windows[1], 5, {"a", "c"}, {2, 1});
  AddMicrobatch(&windows[1], 6, {"c"}, {1});
  for (const char* job : {"a", "c"})
    Add(&windows[1], v1::Operation::STEP, job, job[0] == 'a' ? 2 : 1);
  return windows;
}

// What is kept of the windows at hand, but for transfers, which the first and last stage lack.
std::multiset<std::string> Kept(const std::vector<v1::Window>& at_hand, int64_t first_dropped) {
  std::multiset<std::string> kept;
  CutLosses losses;
  for (const v1::Window& window : at_hand) {
    const std::vector<bool> keeps = KeptAfterCut(window, first_dropped, {}, &losses);
    for (int i = 0; i < window.operations_size(); ++i) {
      const v1::Operation& operation = window.operations(i);
      const bool transfer =
          operation.kind() == v1::Operation::RECV || operation.kind() == v1::Operation::SEND;
      if (!transfer && keeps[static_cast<size_t>(i)]) {
        kept.insert(v1::Operation::Kind_Name(operation.kind()) + " " + operation.job() +
                    std::to_string(operation.microbatch()) + "/" +
                    std::to_string(operation.step()));
      }
    }
  }
  return kept;
}

TEST_CASE("a cut keeps the same on all stages, wherever the windows are divided") {
  const std::vector<v1::Window> windows = TwoWindows();
  for (const int stages : {2, 3, 4}) {
    for (int in_flight = 1; in_flight <= stages + 2; ++in_flight) {
      planner::PlacesInFlight left;
      const auto first = WindowsOfStages(windows[0], stages, in_flight, {}, &left);
      const auto second = WindowsOfStages(windows[1], stages, in_flight, left, &left);
      for (int64_t first_dropped = 1; first_dropped <= 7; ++first_dropped) {
        INFO(stages << " stages, " << in_flight << " in flight, cut at " << first_dropped);
        const std::multiset<std::string> of_both = Kept({first[0], second[0]}, first_dropped);
        for (size_t stage = 0; stage < static_cast<size_t>(stages); ++stage) {
          const auto of_stage = Kept({first[stage], second[stage]}, first_dropped);
          // Behind the first stage more ends in the same window: Backwards and norms of what it
          // still has in flight.
          for (const std::string& operation : of_both) CHECK(of_stage.contains(operation));
          for (const std::string& operation : of_stage) {
            const bool more = operation.starts_with("BACKWARD") || operation.starts_with("NORM_UP");
            CHECK((more || of_both.contains(operation)));
          }
          if (first_dropped <= 3) continue;
          auto joined = Kept({first[stage]}, 4);
          joined.merge(Kept({second[stage]}, first_dropped));
          CHECK(joined == of_stage);
        }
      }
    }
  }
}

}  // namespace
}  // namespace lorad::worker
