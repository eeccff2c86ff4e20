// One global batch into microbatches: greedy, and where greedy may be beaten the packing program.
// LoRAFusion 4.2, Algorithm 1, lines 1 to 11:
//   1. first-fit decreasing. Where it meets the lower bound L2 it is best, and stays.
//   2. else the fewest bins, by bin completion or on HiGHS, until proved, or a limit is met.
//   3. if asked (a merge pass follows): as many bins, and the last as empty as can be.
// The program's packing is taken only where it has fewer bins, or as many and a last one emptier
// than greedy's: greedy wins ties. Limits count work, so equal input gives an equal packing; only
// `cancelled` may ask the clock, and a cancelled batch is packed as greedy packs it.
// Batches do not depend on one another: a caller may pack several side by side.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/window/pack.h"

namespace lorad::planner {

enum class PackSolver { kBinCompletion, kHighs };

struct PackLimits {
  PackSolver solver = PackSolver::kBinCompletion;
  // kBinCompletion: of PackSearchLimits; kHighs: of the branch-and-bound tree. For each of the two
  // stages; 0: greedy alone. The default keeps 32 samples under 30 ms at worst.
  int64_t nodes = 1'000'000;
  // kHighs: of the simplex method, for each of the two stages; beyond 1,000 samples times bins
  // fewer in proportion, since each takes longer.
  int64_t iterations = 200'000;
  bool empty_last_bin = false;  // what changes results: stage 2, and the emptiest bin goes last
  std::function<bool()> cancelled = nullptr;
};

enum class PackPath {
  kGreedyMetBound,   // the program was not needed
  kGreedyAlone,      // the program was not asked
  kProgramImproved,  // fewer bins, or an emptier last one
  kGreedyProved,     // the program proved that nothing is better
  kNodeLimit,        // the program ended without an answer: greedy
  kCancelled,        // greedy
};

struct PackResult {
  Packing packing;
  PackPath path = PackPath::kGreedyMetBound;
  int64_t greedy_bins = 0;
  int64_t bound_bins = 0;   // L2
  int64_t last_padded = 0;  // padded tokens of the last bin; 0: no bin
  int64_t nodes = 0;
  bool proved = false;  // no packing is better (in all that was asked for)
};

// Errors of PackFirstFitDecreasing; with kHighs also of Minimize.
absl::StatusOr<PackResult> PackBatch(const std::vector<Sample>& samples, const PackOptions& options,
                                     const PackLimits& limits = {});

const char* Name(PackPath path);  // "greedy met the bound", "integer program improved", ...
// "5 bins (bound 5, greedy 6, last 812 tokens), integer program improved, 1532 nodes: [0 3] [1 2]"
std::string ToText(const PackResult& result);

}  // namespace lorad::planner
