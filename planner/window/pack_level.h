// As many microbatches as before, of lengths as equal as can be: what a pipeline wants once their
// number is settled. Unequal neighbours make its stages wait for one another.
#pragma once

#include <vector>

#include "planner/window/pack.h"

namespace lorad::planner {

// `packing` (of `samples` under `options`) dealt again into as many bins: by falling length each
// sample goes into the bin with the fewest tokens (longest processing time first; Graham, "Bounds
// on multiprocessing timing anomalies", 1969: the fullest bin is at most 4/3 - 1/3n times the
// best). Where that overflows a bin, or makes the fullest bin no emptier, `packing` itself is
// returned. The emptiest bin stands last. Deterministic. O(n log n + n bins).
Packing LevelBins(const std::vector<Sample>& samples, const Packing& packing,
                  const PackOptions& options);

}  // namespace lorad::planner
