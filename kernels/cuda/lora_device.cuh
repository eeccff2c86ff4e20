// Device code that the kernels of the LoRA linear share: tiles in shared memory, dropout selects,
// fixed-point sums.
//
// Tiles lie in shared memory in rows of 16-byte pieces, piece p of row r in the place p ^ f(r)
// (f below), so that the 8 rows of an 8 x 8 matrix touch all 32 banks.
#ifndef LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_
#define LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/lora_tables.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {

inline constexpr int kWarpLanes = 32;

// Byte offset of piece `piece` of row `row` in a tile of kPieces (2, 4 or 8) pieces a row.
template <int kPieces>
__device__ inline uint32_t TileOffset(int row, int piece) {
  const int shift = row * kPieces / 8;
  return static_cast<uint32_t>(row * kPieces + (piece ^ (shift & (kPieces - 1)))) * 16;
}

// Philox of 8 consecutive features of one row: kept where the 16-bit lane is at least the
// threshold.
__device__ inline PhiloxCounter DropoutLanes(const LoraRows& rows, uint32_t word0, int row,
                                             int feature) {
  return Philox(rows.seed,
                {{word0 + static_cast<uint32_t>(feature / kDropoutLanes),
                  static_cast<uint32_t>(rows.first_position + row), rows.sequence, rows.step}});
}

// 8 features as they are where kept, zero elsewhere.
__device__ inline uint4 Select(uint4 v, const PhiloxCounter& lanes, uint32_t threshold_twice) {
  v.x &= __vcmpgeu2(lanes.word[0], threshold_twice);
  v.y &= __vcmpgeu2(lanes.word[1], threshold_twice);
  v.z &= __vcmpgeu2(lanes.word[2], threshold_twice);
  v.w &= __vcmpgeu2(lanes.word[3], threshold_twice);
  return v;
}

// Bit f: feature f of the 8 is kept.
__device__ inline uint32_t MaskByte(const PhiloxCounter& lanes, uint32_t threshold) {
  uint32_t byte = 0;
  for (int w = 0; w < 4; ++w) {
    byte |= static_cast<uint32_t>((lanes.word[w] & 0xFFFF) >= threshold) << (2 * w);
    byte |= static_cast<uint32_t>((lanes.word[w] >> 16) >= threshold) << (2 * w + 1);
  }
  return byte;
}

// quanta += value in fixed point (kGradientQuantum); false, and nothing added, where it is not
// finite or too large.
__device__ inline bool AddFixed(long long& quanta, float value) {
  constexpr float kScale = static_cast<float>(1.0 / kGradientQuantum);
  if (!(fabsf(value) < static_cast<float>(kGradientLimit))) return false;
  quanta += __float2ll_rn(value * kScale);  // the product is exact
  return true;
}

__device__ inline void AddQuanta(int64_t* sum, long long quanta) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(quanta));
}

// The same for *sum.
__device__ inline bool AddFixed(int64_t* sum, float value) {
  long long quanta = 0;
  if (!AddFixed(quanta, value)) return false;
  AddQuanta(sum, quanta);
  return true;
}

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_LORA_DEVICE_CUH_
