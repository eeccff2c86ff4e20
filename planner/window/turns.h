// How long the microbatches of a window are that several stages run, which jobs share them, and in
// which turn they come. mLoRA 3.2, LoRAFusion 4.2 ("Bubble Lemma & Adapter Grouping").
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
  int64_t longest = 0;  // of its sequences
};

struct TurnOptions {
  int64_t capacity_tokens = 0;  // of a microbatch, at most
  int64_t places_between = 0;   // where so many lie between two batches of a job nobody waits
};

// The jobs, by index, in groups that take turns: the microbatches of a group follow those of the
// group before it, and hold no other jobs. A job's next batch is in the next window, in the same
// turn: so the microbatches of all other groups lie between its last Backward and its next Forward.
struct Turns {
  int64_t capacity_tokens = 0;  // a microbatch holds no more
  std::vector<std::vector<size_t>> groups;
};

// What a microbatch takes beside its tokens, in tokens: weights are read and kernels launched for
// each, however short. From the shape of Qwen2.5-14B on an H200, whose stages took 2.6 % longer a
// token with microbatches of 4,096 at most than with those of 8,192, and 9.5 % with those of 2,048.
inline constexpr int64_t kMicrobatchCostTokens = 200;

// The same of a group whose microbatches hold at most so many tokens: an eighth of them where that is
// less, for short ones are meant for devices that lose less by them.
int64_t ConstantPart(int64_t capacity_tokens);

// No microbatches are planned shorter than this where longer ones have room: kernels fill a device
// less well below.
inline constexpr int64_t kShortestMicrobatch = 1024;

// Of all microbatch lengths C (the capacity, half of it, .., none below kShortestMicrobatch or the
// longest sequence) and all numbers of groups the choice with the least cost of a window. With
// groups g of T(g) tokens in n(g) = ceil(T(g) / C) microbatches of w(g) = T(g) / n(g):
//   N ConstantPart(capacity)           N = sum n(g): every microbatch has a constant part
//   + max(0, P - B) T / N                P = places_between, B = min (N - n(g)): the pipeline drains
//                                        so far before a Step
//   + 0.1 max(0, 4 P - max(P, B)) T / N  and so far at times, since microbatches differ
//   + sum |w(g) - w(g + 1)| / 2          stages wait for a neighbour that is longer; also where the
//                                        first group follows what the window before has left
// The factors are fitted to simulations of whole windows (tests/planner/window/turns_test.cc). Of
// equal ones the longest microbatches, then the fewest groups: the fuller they are. So a group of
// workers that was formed with long microbatches has short ones while one job trains in it.
//
// Jobs of which `before` has a batch that ends go last, in the order of these ends, and the rest by
// name: so each keeps its turn from window to window, whoever comes and goes. O(n^2) in the number
// of jobs.
Turns TakeTurns(const std::vector<TurnJob>& jobs, const TurnOptions& options,
                const PlacesInFlight& before);

}  // namespace lorad::planner
