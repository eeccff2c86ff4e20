#include "sizes/cuda_products.h"

#include <algorithm>

namespace lorad::sizes {

CudaLoraLayout LayCudaLora(const Limits& limits, int64_t value_bytes) {
  CudaLoraLayout to;
  to.own_columns = LoraSavedColumns(limits.targets_in_group, limits.rank);
  to.columns = std::max<int64_t>(limits.slots, 1) * to.own_columns;
  to.masks = limits.targets_in_group;
  to.mask_row_bytes = MaskRowBytes(limits.features);
  Layout layout;
  to.shared_at = layout.Take(limits.tokens * to.columns * value_bytes);
  to.own_at = layout.Take(limits.tokens * to.own_columns * value_bytes);
  to.mask_at = layout.Take(to.masks * limits.tokens * to.mask_row_bytes);
  to.partial_at = layout.Take(kLoraPartialBytes);
  to.counters_at = layout.Take(kLoraCounters * int64_t{sizeof(int32_t)});
  to.bytes = layout.bytes();
  return to;
}

}  // namespace lorad::sizes
