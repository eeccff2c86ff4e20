// How the product kernel (hopper.h) finishes the tiles of head and loss (gemm.h: ExponentialTables,
// TargetTables).
#pragma once

#include <cmath>

#include "kernels/cuda/gemm/hopper_consumer.cuh"

namespace lorad::kernels::cuda {

// e^x, to 2 ulp and what rounding x * log2(e) costs; 0 below 2^-126.
__device__ inline float FastExp(float x) {
  constexpr float kLog2E = 1.44269504f;
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x * kLog2E));
  return y;
}

// ---- exponentials, their sums and maxima ----

// Of this thread's two rows of a block of 64.
template <Product kProduct, typename Shape>
struct Consumer<kProduct, Shape>::LossRows {
  int target[2];  // its place among the tile's columns from this thread's first; or outside
  float reference[2];
};

template <Product kProduct, typename Shape>
__device__ auto Consumer<kProduct, Shape>::LoadLossRows(int block) const -> LossRows {
  const ExponentialTables& tables = arguments_.exponentials;
  LossRows rows;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = ThreadRow(block, i);
    const bool inside = row < arguments_.rows;
    rows.target[i] = (inside ? tables.targets[row] : -1) - column_ - 2 * (lane_ % 4);
    rows.reference[i] = inside ? tables.references[row] : 0;
  }
  return rows;
}

// Takes the targets' logits, and columns beyond the last, out of the sums: e^-infinity is 0.
template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::TakeTargets(float (&sums)[Shape::kColumns / 2],
                                                       const LossRows& rows, int block) const {
  const int end = arguments_.columns - column_ - 2 * (lane_ % 4);
  float logits[2] = {};
  bool found[2] = {};
#pragma unroll
  for (int at = 0; at < Shape::kColumns / 2; ++at) {
    const int i = at / 2 % 2;
    const int column = at / 4 * 8 + at % 2;
    const bool target = column == rows.target[i];
    if (target) logits[i] = sums[at];
    found[i] |= target;
    if (target || column >= end) sums[at] = -INFINITY;
  }
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (found[i]) arguments_.exponentials.target_logits[ThreadRow(block, i)] = logits[i];
  }
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishExponentialBox(
    const float (&sums)[Shape::kColumns / 2], int result, const LossRows& rows,
    LossPart (&parts)[2]) const {
  // As FinishBox.
  const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
  const uint32_t address = Buffer(result) + row * kBox * 2 + ((lane_ / 16) ^ (lane_ % 8)) * 16;
#pragma unroll
  for (int j = 0; j < kBox / 8; j += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = ColumnOf(result) / 2 + j * 4 + 2 * i;
      LossPart& part = parts[i % 2];
      const float low = sums[at] - rows.reference[i % 2];
      const float high = sums[at + 1] - rows.reference[i % 2];
      const float2 e = {FastExp(low), FastExp(high)};
      part.max = fmaxf(part.max, fmaxf(low, high));
      part.sum += e.x + e.y;
      packed[i] = Pack(e.x, e.y);
    }
    ptx::StoreMatrices(address ^ (j * 16), packed);
  }
}

// Four lanes have the columns of a row.
template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::WritePart(LossPart part, int row) const {
#pragma unroll
  for (int step = 1; step < 4; step *= 2) {
    part.sum += __shfl_xor_sync(0xffffffff, part.sum, step);
    part.max = fmaxf(part.max, __shfl_xor_sync(0xffffffff, part.max, step));
  }
  if (lane_ % 4 != 0 || row >= arguments_.rows) return;
  const int64_t tile = column_ / Shape::kColumns;
  arguments_.exponentials.parts[tile * arguments_.rows + row] = part;
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishExponentials(Sums& sums) {
  static_assert(Shape::kBufferCount == 1 && Shape::kColumns == kPartColumns);
#pragma unroll
  for (int block = 0; block < Shape::kRowBlocks; ++block) {
    const LossRows rows = LoadLossRows(block);
    const auto here = [](int target) { return target >= 0 && target < Shape::kColumns; };
    const bool taken = here(rows.target[0]) || here(rows.target[1]) ||
                       column_ + Shape::kColumns > arguments_.columns;
    if (__any_sync(0xffffffff, taken)) TakeTargets(sums[block], rows, block);
    LossPart parts[2] = {{0, -INFINITY}, {0, -INFINITY}};
#pragma unroll
    for (int box = 0; box < Shape::kOutBoxes; ++box) {
      const int result = block * Shape::kOutBoxes + box;
      if (Elected()) ptx::WaitStoresRead<0>();
      Sync();
      FinishExponentialBox(sums[block], result, rows, parts);
      ptx::FenceSharedWrites();
      Sync();
      if (Elected()) {
        ptx::StoreBox(&arguments_.y, column_ + ColumnOf(result), row_ + RowOf(result),
                      Buffer(result));
        ptx::CommitStores();
      }
    }
    for (int i = 0; i < 2; ++i) WritePart(parts[i], ThreadRow(block, i));
    __syncwarp();
  }
}

// ---- the gradient ----

// Of a box: this thread's words of the targets' rows of W, as its results lie.
template <Product kProduct, typename Shape>
struct Consumer<kProduct, Shape>::TargetWords {
  uint32_t word[2][kBox / 8];  // two columns each
  LossFactors factors[2];
};

template <Product kProduct, typename Shape>
__device__ auto Consumer<kProduct, Shape>::LoadTargetWords(int result) const -> TargetWords {
  const auto* weight = static_cast<const __nv_bfloat16*>(arguments_.weight_rows);
  TargetWords words;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = ThreadRow(result / Shape::kOutBoxes, i);
    const bool inside = row < arguments_.rows;
    words.factors[i] = inside ? arguments_.target_rows.factors[row] : LossFactors{0, 0};
    const int64_t target = inside ? arguments_.target_rows.targets[row] : 0;
    const __nv_bfloat16* from = weight + target * arguments_.weight_stride;
#pragma unroll
    for (int j = 0; j < kBox / 8; ++j) {
      const int column = column_ + ColumnOf(result) + j * 8 + 2 * (lane_ % 4);
      // Rows are a multiple of 16 bytes apart, so what lies beside an odd last column may be read.
      words.word[i][j] =
          column < arguments_.columns ? __ldg(reinterpret_cast<const uint32_t*>(from + column)) : 0;
    }
  }
  return words;
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishTargetRowsBox(
    const float (&sums)[Shape::kColumns / 2], int result, const TargetWords& words) const {
  // As FinishBox.
  const int row = thread_ / 32 * 16 + lane_ / 8 % 2 * 8 + lane_ % 8;
  const uint32_t address = Buffer(result) + row * kBox * 2 + ((lane_ / 16) ^ (lane_ % 8)) * 16;
#pragma unroll
  for (int j = 0; j < kBox / 8; j += 2) {
    uint32_t packed[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int at = ColumnOf(result) / 2 + j * 4 + 2 * i;
      const float2 target = Unpack(words.word[i % 2][j + i / 2]);
      const LossFactors factors = words.factors[i % 2];
      packed[i] = Pack(fmaf(factors.target, target.x, -factors.rest * sums[at]),
                       fmaf(factors.target, target.y, -factors.rest * sums[at + 1]));
    }
    ptx::StoreMatrices(address ^ (j * 16), packed);
  }
}

template <Product kProduct, typename Shape>
__device__ void Consumer<kProduct, Shape>::FinishTargetRows(const Sums& sums) {
  TargetWords next = LoadTargetWords(0);
#pragma unroll
  for (int result = 0; result < Shape::kResults; ++result) {
    const TargetWords words = next;
    if (result + 1 < Shape::kResults) next = LoadTargetWords(result + 1);
    if (Elected()) ptx::WaitStoresRead<Shape::kBufferCount - 1>();
    Sync();
    FinishTargetRowsBox(sums[result / Shape::kOutBoxes], result, words);
    ptx::FenceSharedWrites();
    Sync();
    if (Elected()) {
      ptx::StoreBox(&arguments_.y, column_ + ColumnOf(result), row_ + RowOf(result),
                    Buffer(result));
      ptx::CommitStores();
    }
  }
}

}  // namespace lorad::kernels::cuda
