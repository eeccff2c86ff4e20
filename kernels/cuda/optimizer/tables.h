// What the host makes of an optimizer's matrices: their table in device memory.
#pragma once

#include <span>

#include "kernels/batch.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/optimizer/optimizer.h"

namespace lorad::kernels::cuda {

AdamWJob JobOf(const OptimizerTable& table, const AdamWOptions& options);

// Uploaded when made. May end as soon as what uses it is enqueued (see DeviceTable).
struct OptimizerMemory {
  OptimizerMemory(TablePool& pool, std::span<const OptimizerTensor> tensors);

  DeviceTable memory;
  OptimizerTable table;
};

}  // namespace lorad::kernels::cuda
