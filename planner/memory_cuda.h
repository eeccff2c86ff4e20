// The scratch memory of kernels/cuda, as a formula. Within the planner only; memory.h says what
// for.
#pragma once

#include <cstdint>

#include "planner/memory.h"

namespace lorad::planner {

// What CudaBackend::ReserveWorkspace takes for a group: the columns S and dS of the adapters, their
// dropout masks, and what attention, head and loss, and products share, the largest of them.
int64_t CudaWorkspaceBytes(const ModelShape& model, const GroupShape& group);

}  // namespace lorad::planner
