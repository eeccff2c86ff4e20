// The memory that workers take beyond the counted bytes: their peaks, from their heartbeats, into
// the fit of planner/cost/memory_fit.h. The log reports it; what is admitted, and allocated, is
// what is counted.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/core/cluster/cluster.h"
#include "sizes/bytes_text.h"

namespace lorad::server {

void Cluster::KeepPeak(const GroupState& group) {
  // The fit is of a model that is whole on one worker.
  if (group.stages.size() > 1) return;
  const WorkerState& worker = At(group.first().worker);
  // A GPU's memory is not in its process's resident set. And a peak is this group's only where it
  // is above what the process had before.
  if (group.shape.device.kind != planner::DeviceKind::kCpu || group.windows_done == 0 ||
      group.counted_bytes == 0 || worker.peak_bytes <= group.first().peak_before_bytes) {
    return;
  }
  const int64_t tokens = group.shape.capacity_tokens;
  const planner::MemoryFit& fit =
      fits_.Observe(group.base_model, worker,
                    {.counted_bytes = group.counted_bytes,
                     .tokens = tokens,
                     .squared_lengths = tokens * group.shape.longest_sequence,
                     .peak_bytes = worker.peak_bytes});
  turn_.Info(absl::StrCat(group.name, ": its worker's peak was ",
                          sizes::MemoryText(worker.peak_bytes), ", ",
                          sizes::MemoryText(group.counted_bytes), " counted; memory of '",
                          group.base_model, "': ", fit.ToText()));
}

}  // namespace lorad::server
