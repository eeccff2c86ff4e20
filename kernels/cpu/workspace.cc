#include "kernels/cpu/workspace.h"

namespace lorad::kernels::cpu {

Workspace TakeWorkspace(const Limits& limits, int threads, Arena& arena) {
  const sizes::CpuWorkspaceLayout layout = sizes::LayCpuWorkspace(limits, threads);
  char* const base = arena.Allocate<char>(layout.bytes);
  Workspace workspace;
  workspace.limits = limits;
  if (arena.counting()) return workspace;
  const auto floats = [base](int64_t at) { return reinterpret_cast<float*>(base + at); };
  workspace.rank_columns = layout.rank_columns;
  workspace.s = floats(layout.s_at);
  workspace.ds = floats(layout.ds_at);
  workspace.mask_bits = reinterpret_cast<uint8_t*>(base + layout.mask_bits_at);
  workspace.mask_row_bytes = layout.mask_row_bytes;
  workspace.loss_sums = floats(layout.loss_sums_at);
  workspace.loss_max = floats(layout.loss_max_at);
  workspace.loss_lanes = floats(layout.loss_lanes_at);
  workspace.loss_target = floats(layout.loss_target_at);
  workspace.scratch_floats = layout.scratch_floats;
  for (int thread = 0; thread < threads; ++thread) {
    workspace.scratch.push_back(floats(layout.scratch_at + thread * layout.scratch_step_bytes));
  }
  return workspace;
}

}  // namespace lorad::kernels::cpu
