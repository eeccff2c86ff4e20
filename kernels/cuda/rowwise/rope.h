// What a kernel reads that turns its results by the positions of their rows (backend.h: Rope,
// RopeBackward): the product's, forward, and attention's, backward.
#pragma once

#include <cstdint>

#include "kernels/cuda/handles/tables.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

struct RopeTables {
  const int32_t* positions = nullptr;  // [T], device; null: nothing is turned
  const float* angles = nullptr;       // [P, D], device: cosines, then sines
  int32_t angle_stride = 0;            // elements between its rows
  int32_t head_size = 0;               // D

  constexpr bool empty() const { return positions == nullptr; }
};

// angles: the table of Rope (backend.h), or empty.
inline RopeTables RopeOf(const BatchTables& batch, const TensorView& angles) {
  if (angles.empty()) return {};
  return {.positions = batch.positions,
          .angles = angles.f32(),
          .angle_stride = static_cast<int32_t>(angles.row_stride),
          .head_size = static_cast<int32_t>(angles.columns)};
}

}  // namespace lorad::kernels::cuda
