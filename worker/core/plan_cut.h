#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// The smallest number of a window's microbatches; nothing where it has none.
std::optional<int64_t> FirstMicrobatch(const v1::Window& window);

// What a cut has taken so far, along the windows at hand, oldest first.
struct CutLosses {
  std::set<std::string> jobs;  // who lost something: nothing of them that comes later is kept
  bool room = false;           // a FreeSlot was dropped, and with it room that loads count on
};

// Which operations of `window` are executed when the plan is cut so that no microbatch numbered
// `first_dropped` or higher runs (docs/engine.md, Windows): those that follow from the microbatches
// before it.
//   Forward, Backward, Evaluate, Generate,    kept if their microbatch is < first_dropped
//   Recv, Send
//   NormUp, ClipDown, Step, Save, FreeSlot    kept if their job has lost nothing so far
//   LoadSlot                                  kept if its job and room have lost nothing so far, and
//                                             the window's FirstMicrobatch is < first_dropped, or
//                                             there is none
//   Noop                                      dropped: nothing that is kept can follow from it
// Nothing else decides: not how far a worker has come, so that the stages of a model, which stand
// at different operations, keep the same. `before`: what an earlier cut kept of this window, or
// empty; what that dropped stays dropped and is no loss to this one. Result: one entry an
// operation. Losses are added to `losses`.
std::vector<bool> KeptAfterCut(const v1::Window& window, int64_t first_dropped,
                               const std::vector<bool>& before, CutLosses* losses);

}  // namespace lorad::worker
