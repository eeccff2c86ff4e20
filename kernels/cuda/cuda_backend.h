// The operations on one NVIDIA GPU (sm_80 and newer; tuned for sm_90).
//
// Activations and weights are bfloat16 with float32 sums, adapters and their optimizer float32;
// or, with float32 activations, everything is float32: that mode is for comparing with references
// and promises no isolation (rows may depend on how many there are).
//
// Everything is enqueued on one stream. No operation allocates or waits but CopyToHost.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace lorad::kernels {

// Errors: those of ProbeCudaDevice (device.h); FAILED_PRECONDITION also for a cuDNN too old.
// A device that is lost later, or a kernel that fails, ends the process with a message.
absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device_index,
                                                         DType activation = DType::kBfloat16);

}  // namespace lorad::kernels
