// The terms with a mask of the product kernel (hopper.h): a consumer's part of a tile.
#pragma once

#include "kernels/cuda/gemm/hopper.cuh"

namespace lorad::kernels::cuda {

// A mask's bits in two rows of a tile, 8 apart, those of this thread in its warp's 16. The four
// threads of a quad have the same rows, and keep every fourth of their words.
template <typename Shape>
struct Mask {
  static constexpr int kRowWords = Shape::kColumns / 32;
  uint32_t words[kRowWords / 2];

  // `row`, `column`: of the product, the warp's and the tile's first.
  __device__ void Load(const HopperArguments& arguments, const TermNote& term, int row,
                       int column) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
    for (int i = 0; i < kRowWords / 2; ++i) {
      const int word = 4 * i + lane % 4;
      const int high = word < kRowWords ? 0 : 1;
      const int at_row = row + lane / 4 + 8 * high;
      const int at_column = column + (word - high * kRowWords) * 32;
      words[i] = 0;
      if (at_row < arguments.rows && at_column < arguments.columns) {
        words[i] = ptx::LoadGlobal(term.mask_words + int64_t{at_row} * term.mask_row_words +
                                   at_column / 32);
      }
    }
  }
  // Word `word` of row lane / 4 (high: + 8), this thread's first column lowest. By whole warps.
  __device__ uint32_t Word(int high, int word) const {
    const int at = high * kRowWords + word;
    return __shfl_sync(0xffffffff, words[at / 4], at % 4, 4) >> (2 * (threadIdx.x % 4));
  }
};

// Columns of a masked term at a time. In turns fewer registers are left.
template <typename Shape>
inline constexpr int kMaskedPart = Shape::kRoles == Roles::kInTurns ? 8 : 16;

// sums += scale * part where the mask says, of columns from `first`.
template <typename Shape>
__device__ void AddMasked(float (&sums)[Shape::kColumns / 2], int first,
                          const float (&part)[kMaskedPart<Shape> / 8][4], float scale,
                          const Mask<Shape>& mask) {
  uint32_t kept[2];
#pragma unroll
  for (int high = 0; high < 2; ++high) kept[high] = mask.Word(high, first / 32);
#pragma unroll
  for (int i = 0; i < kMaskedPart<Shape> / 2; ++i) {
    const int bit = first % 32 + i / 4 * 8 + i % 2;
    if ((kept[i / 2 % 2] >> bit) & 1) sums[first / 2 + i] += scale * part[i / 4][i % 4];
  }
}

// sums += mask o (S_t A_t) for the term in a stage at `address` and the warp's rows there, by
// products of single warps: their results take few registers and lie as the warpgroup's do. A part
// is added while the next is multiplied.
template <typename Shape>
__device__ void MultiplyMasked(float (&sums)[Shape::kColumns / 2], uint32_t address, int warp_row,
                               int products, float scale, const Mask<Shape>& mask) {
  constexpr int kPart = kMaskedPart<Shape>;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  // Lane l names row l % 8 of matrix l / 8.
  const int half = lane / 8 % 2 * 8 + lane % 8;
  const uint32_t s_row = address + (warp_row + half) * kBox * 2;
  const uint32_t a_row = address + Shape::kXBytes + half * kBox * 2;
  const auto load_s = [&](int k, uint32_t(&s)[4]) {
    ptx::LoadMatrices(s_row + (((2 * k + lane / 16) ^ (lane % 8)) * 16), s);
  };
  const auto load_a = [&](int first, int k, uint32_t(&a)[kPart / 4]) {
    const int piece = first % kBox / 8 + (kPart == 16 ? lane / 16 : 0);
    ptx::LoadMatricesTransposed(
        a_row + first / kBox * wgmma::kBoxBytes + (piece ^ (lane % 8)) * 16 + k * 16 * kBox * 2, a);
  };
  const auto multiply = [&](const uint32_t(&s)[4], const uint32_t(&a)[kPart / 4],
                            float(&part)[kPart / 8][4]) {
#pragma unroll
    for (int i = 0; i < kPart / 8; ++i) ptx::Multiply(part[i], s, a[2 * i], a[2 * i + 1]);
  };

  float part[kPart / 8][4];
#pragma unroll
  for (int first = 0; first < Shape::kColumns; first += kPart) {
    uint32_t s[4];
    uint32_t a[kPart / 4];
    load_s(0, s);
    load_a(first, 0, a);
    if (first > 0) AddMasked<Shape>(sums, first - kPart, part, scale, mask);
#pragma unroll
    for (int i = 0; i < kPart / 2; ++i) part[i / 4][i % 4] = 0;
    multiply(s, a, part);
#pragma unroll 1
    for (int k = 1; k < products; ++k) {  // of ranks above 16
      load_s(k, s);
      load_a(first, k, a);
      multiply(s, a, part);
    }
  }
  AddMasked<Shape>(sums, Shape::kColumns - kPart, part, scale, mask);
  __syncwarp();
}

}  // namespace lorad::kernels::cuda
