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

// What a microbatch takes beside its tokens, in tokens: weights are read and kernels launched for
// each, however short, and the last wave of each product's tiles leaves some multiprocessors idle,
// of so many more tokens as the model's hidden size is smaller:
//   2^20 / hidden
// On an H200 the stages of Qwen2.5-14B (5,120) took 2.6 % longer a token with microbatches of 4,096
// at most than with those of 8,192, as 200 tokens do, and those of Qwen2.5-3B (2,048) 7 %, as 500
// do. REQUIRES: hidden > 0.
int64_t MicrobatchCostTokens(int64_t hidden);
inline constexpr int64_t kMicrobatchCostTokens = 200;  // where the model is not known

struct TurnOptions {
  int64_t capacity_tokens = 0;  // of a microbatch, at most
  int64_t places_between = 0;   // where so many lie between two batches of a job nobody waits
  int64_t microbatch_cost_tokens = kMicrobatchCostTokens;  // what a microbatch takes beside its own
};

// The jobs, by index, in groups that take turns: the microbatches of a group follow those of the
// group before it, and hold no other jobs. A job's next batch is in the next window, in the same
// turn: so the microbatches of all other groups lie between its last Backward and its next Forward.
struct Turns {
  int64_t capacity_tokens = 0;  // a microbatch holds no more
  std::vector<std::vector<size_t>> groups;
};

// No microbatches are planned shorter than this where longer ones have room: kernels fill a device
// less well below.
inline constexpr int64_t kShortestMicrobatch = 1024;

// Of all microbatch lengths C (the capacity, half of it, .., none below kShortestMicrobatch or the
// longest sequence) and all numbers of groups the choice with the least cost of a window. With
// groups g of T(g) tokens in n(g) = ceil(T(g) / C) microbatches of w(g) = T(g) / n(g):
//   N min(microbatch_cost, capacity / 8) N = sum n(g): every microbatch has a constant part, of which
//                                        devices whose microbatches are short lose less
//   + max(0, P - B) T / N                P = places_between, B = min (N - n(g)): the pipeline drains
//                                        so far before a Step
//   + 0.1 max(0, 2 P - max(P, B)) T / N  and so far at times, since microbatches differ
//   + sum |w(g) - w(g + 1)| / 2          stages wait for a neighbour that is longer
//   + |w(1) - w'| / 4                    and where the last microbatch before had w' tokens: once,
//                                        while another length pays in every window from now on
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
