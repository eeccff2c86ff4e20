#include "sizes/cuda_workspace.h"

#include <algorithm>

#include "sizes/cuda_attention.h"
#include "sizes/cuda_loss.h"

namespace lorad::sizes {

CudaWorkspaceLayout LayCudaWorkspace(const Limits& limits, int64_t value_bytes,
                                     int64_t multiprocessors) {
  // A stage without the head has no loss.
  const int64_t loss = limits.vocabulary == 0
                           ? 0
                           : LayCudaLoss(std::max<int64_t>(limits.tokens, 1), limits.vocabulary,
                                         limits.hidden, value_bytes, multiprocessors)
                                 .bytes;
  CudaWorkspaceLayout to;
  to.lora = LayCudaLora(limits, value_bytes);
  to.scratch_bytes = std::max({CudaAttentionBytes(limits, value_bytes), loss, kProductBytes});
  Layout layout;
  layout.Take(to.lora.bytes);
  to.scratch_at = layout.Take(to.scratch_bytes + kCudaScratchAlignment);
  to.bytes = layout.bytes();
  return to;
}

}  // namespace lorad::sizes
