// The GPU's side of the opaque handles of backend.h: host descriptions, and their tables in device
// memory. What varies from microbatch to microbatch is read by kernels from these tables alone.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/handles/chunks.h"
#include "kernels/cuda/handles/tables.h"

namespace lorad::kernels::cuda {

// What a part of the backend keeps with a microbatch, made when it first needs it.
struct Extension {
  virtual ~Extension() = default;
};

struct CudaBatch final : Batch {
  // Enqueues one upload.
  CudaBatch(Context& context, const BatchDescription& description);

  int64_t tokens() const { return static_cast<int64_t>(positions.size()); }

  // The host's copy.
  std::vector<Segment> segments;      // [B]
  std::vector<LossRow> loss_rows;     // [n]
  std::vector<int32_t> positions;     // [T]: rows of the rope tables
  std::vector<Chunk> chunks;          // [C], ChunksOf(segments)
  std::vector<uint8_t> loss_trained;  // [n]: its segment is kTrain
  // The device's.
  BatchTables tables;

  // Of the LoRA linear, of attention, of the loss.
  mutable std::unique_ptr<Extension> lora;
  mutable std::unique_ptr<Extension> attention;
  mutable std::unique_ptr<Extension> loss;

 private:
  void Describe(const BatchDescription& description);
  void FillTables(const BatchDescription& description);

  DeviceTable memory_;
};

// W [O, K] row-major of the activation type, used by both products without a second layout.
struct CudaLinear final : Linear {
  bool has_bias = false;
  TensorView weight;  // [O, K], dense
  TensorView bias;    // [1, O] or empty
};

inline const CudaBatch& Of(const Batch& batch) { return static_cast<const CudaBatch&>(batch); }
inline const CudaLinear& Of(const Linear& linear) { return static_cast<const CudaLinear&>(linear); }
inline CudaLinear& Of(Linear& linear) { return static_cast<CudaLinear&>(linear); }

}  // namespace lorad::kernels::cuda
