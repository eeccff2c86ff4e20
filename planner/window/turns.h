// Which jobs share the microbatches of a window that several stages run, and in which turn they
// come. mLoRA 3.2, LoRAFusion 4.2 ("Bubble Lemma & Adapter Grouping").
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "planner/window/types.h"

namespace lorad::planner {

// A job's global batch in the window.
struct TurnJob {
  std::string job;
  int64_t tokens = 0;
};

// The jobs, by index, in groups that take turns: the microbatches of a group follow those of the
// group before it, and hold no other jobs. A job's next batch is in the next window, in the same
// turn: so the microbatches of all other groups lie between its last Backward and its next Forward,
// and where those are `places_between` no stage waits for its Step.
//
// As few groups as that takes (the fewer, the fuller their microbatches), reckoned from tokens;
// where no number of them does, one for each job. Jobs of which `before` has a batch that ends go
// last, in the order of these ends, and the rest by name: so each keeps its turn from window to
// window, whoever comes and goes. O(n^2) in the number of jobs.
std::vector<std::vector<size_t>> TakeTurns(const std::vector<TurnJob>& jobs,
                                           int64_t capacity_tokens, int64_t places_between,
                                           const PlacesInFlight& before);

}  // namespace lorad::planner
