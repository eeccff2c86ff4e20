#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// Which operations of `window` from index `next` on are still executed when its plan is cut so that
// no microbatch numbered `first_dropped` or higher runs (docs/engine.md, Windows): those that
// follow from the microbatches before it. A job with anything dropped is added to `cut_jobs`, and
// nothing of it that comes later is kept; pass the same set along the windows at hand, oldest
// first.
//   Forward, Backward, Evaluate, Recv, Send   kept if their microbatch is < first_dropped
//   NormUp, ClipDown, Step, Save, FreeSlot    kept if their job has lost nothing so far
//   LoadSlot, Noop                            dropped: nothing that is kept can follow from them
// Result: one entry per operation from `next` on.
std::vector<bool> KeptAfterCut(const v1::Window& window, int next, int64_t first_dropped,
                               std::set<std::string>* cut_jobs);

}  // namespace lorad::worker
