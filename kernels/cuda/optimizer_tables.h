// What the host makes of the optimizer's tensors for one call: their table in device memory.
#ifndef LORAD_KERNELS_CUDA_OPTIMIZER_TABLES_H_
#define LORAD_KERNELS_CUDA_OPTIMIZER_TABLES_H_

#include <cstdint>
#include <span>

#include "kernels/batch.h"
#include "kernels/cuda/context.h"
#include "kernels/cuda/optimizer.h"

namespace lorad::kernels::cuda {

AdamWStep StepOf(const AdamWOptions& options);

// Uploaded when made. May end as soon as the call is enqueued (see DeviceTable).
struct OptimizerTables {
  OptimizerTables(TablePool& pool, std::span<const OptimizerTensor> tensors,
                  const AdamWOptions& options, bool with_sums);

  DeviceTable memory;
  OptimizerTable table;
  // With sums; device.
  double* partials = nullptr;  // [blocks]
  double* sums = nullptr;      // [tensors]
  double* total = nullptr;     // their sum
};

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_OPTIMIZER_TABLES_H_
