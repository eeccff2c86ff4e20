// Device code that the kernels of the LoRA linear share: tiles in shared memory, dropout selects,
// fixed-point sums.
//
// Tiles lie in shared memory in rows of 16-byte pieces, piece p of row r in the place p ^ f(r)
// (f below), so that the 8 rows of an 8 x 8 matrix touch all 32 banks.
#pragma once

#include <cuda_bf16.h>

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/lora/dropout.h"
#include "kernels/cuda/lora/tables.h"
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

__device__ inline DropoutRow DropoutRowAt(const LoraRows& rows, int row) {
  return DropoutRowOf(rows.seed, rows.sequence, static_cast<uint32_t>(rows.first_position + row));
}

// By all threads of a warp: keys that stay in registers. The compiler would rather add them up
// again in every call, 14 instructions of about 65.
__device__ inline DropoutKeys KeptKeys(uint64_t seed) {
  DropoutKeys keys = DropoutKeysOf(seed);
#pragma unroll
  for (auto& pair : keys.word) {
    pair[0] = __shfl_sync(0xFFFFFFFF, pair[0], 0);
    pair[1] = __shfl_sync(0xFFFFFFFF, pair[1], 0);
  }
  return keys;
}

// How 16-bit lanes are compared with a threshold t, two at once: min(lane + rotation, limit) +
// addend has its highest bit set where the lane is kept (inverted: dropped), without a carry from
// one lane to the other. Up to t = 2^15, min(lane, t) + 2^15 - t is 2^15 where lane >= t, else
// less. Beyond, lanes are rotated by 2^16 - t, so that dropped ones are the upper end.
struct DropoutTest {
  uint32_t limit;     // of both lanes
  uint32_t inverted;  // all bits or none
};
__device__ inline DropoutTest TestOf(uint32_t threshold) {
  const bool inverted = threshold > 0x8000;
  return {(inverted ? 0x10000 - threshold : threshold) * 0x10001, inverted ? 0xFFFFFFFF : 0};
}

// Bits 15 and 31: see above.
__device__ inline uint32_t TestLanes(uint32_t lanes, const DropoutTest& test) {
  return __viaddmin_u16x2(lanes, test.limit & test.inverted, test.limit) +
         (0x80008000 - test.limit);
}

// Two features as they are where kept, zero elsewhere.
__device__ inline uint32_t Select(uint32_t v, uint32_t tested, const DropoutTest& test) {
  uint32_t mask;
  asm("prmt.b32 %0, %1, 0, 0xBB99;" : "=r"(mask) : "r"(tested));  // signs of bytes 1 and 3
  return v & (mask ^ test.inverted);
}
__device__ inline uint4 Select(uint4 v, const PhiloxCounter& tested, const DropoutTest& test) {
  return make_uint4(Select(v.x, tested.word[0], test), Select(v.y, tested.word[1], test),
                    Select(v.z, tested.word[2], test), Select(v.w, tested.word[3], test));
}
__device__ inline PhiloxCounter TestLanes(const PhiloxCounter& lanes, const DropoutTest& test) {
  return {{TestLanes(lanes.word[0], test), TestLanes(lanes.word[1], test),
           TestLanes(lanes.word[2], test), TestLanes(lanes.word[3], test)}};
}

// Bits 24 to 31: features 0 to 7 are kept (inverted: dropped); the others are anything.
__device__ inline uint32_t MaskBits(const PhiloxCounter& tested) {
  constexpr uint32_t kHighBits = 0x80808080;
  // The highest bits of four bytes are four features.
  const uint32_t low = __byte_perm(tested.word[0], tested.word[1], 0x7531) & kHighBits;
  const uint32_t high = __byte_perm(tested.word[2], tested.word[3], 0x7531) & kHighBits;
  // Bit 8i + 3 is feature i and bit 8i + 7 feature 4 + i; the product brings them to 24 + i and
  // 28 + i, and nothing else there.
  return ((low >> 4) | high) * 0x00204081;
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
  const bool fits = fabsf(value) < static_cast<float>(kGradientLimit);
  const long long more = __float2ll_rn(value * kScale);  // the product is exact
  quanta += fits ? more : 0;
  return fits;
}

// Of memory that every block adds to. (atomicAdd of a pointer out of a table would first ask
// whether it is of shared memory: 20 instructions.)
__device__ inline void AddQuanta(int64_t* sum, long long quanta, bool wanted = true) {
  ptx::AddGlobal(sum, quanta, wanted);
}

// The same for *sum, if wanted; true as well where it is not.
__device__ inline bool AddFixed(int64_t* sum, float value, bool wanted = true) {
  long long quanta = 0;
  const bool fits = AddFixed(quanta, value);
  AddQuanta(sum, quanta, wanted && fits);
  return fits || !wanted;
}

}  // namespace lorad::kernels::cuda
