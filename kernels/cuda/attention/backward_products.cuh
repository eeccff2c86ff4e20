// What a warpgroup of attention's backward (backward.h) asks of the matrix units, and how its
// results reach memory.
//
// Thread t holds of a tile of scores, for i < 2, j < kRows / 8 and c < 2, the element at row
// 16 (t / 32) + (t % 32) / 4 + 8 i of its warpgroup's and at row 8 j + 2 (t % 4) + c of those that
// pass by, in [4 j + 2 i + c]. Results likewise, with columns of the head in place of the latter.
#pragma once

#include "kernels/cuda/attention/backward.cuh"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/rowwise/rope.cuh"

namespace lorad::kernels::cuda::backward {

inline constexpr float kLog2E = 1.44269504f;

// What both parts need of the matrix units.
template <typename S>
struct Products {
  using Scores = float[S::kRows / 2];
  using Packed = uint32_t[S::kRows / 16][4];
  using Results = float[S::kD / 2];
  using Rows = uint32_t[S::kD / 16][4];  // of what is held, as operand A

  // Starts scores = A B^T: A the warpgroup's rows of what is held, B what passes by.
  __device__ static void Start(Scores& scores, uint32_t held, uint32_t stage) {
    using enum wgmma::Contiguous;
#pragma unroll
    for (int step = 0; step < S::kD / 16; ++step) {
      const uint64_t inner = step % 4 * wgmma::Step(kInner);
      const uint64_t a = wgmma::Descriptor<kInner>(held + step / 4 * S::kHeldColumn) + inner;
      const uint64_t b = wgmma::Descriptor<kInner>(stage + step / 4 * S::kStageColumn) + inner;
      if (step == 0) {
        wgmma::Start<kInner>(scores, a, b);
      } else {
        wgmma::Add<kInner>(scores, a, b);
      }
    }
  }

  // The same with A in registers.
  __device__ static void Start(Scores& scores, const Rows& a, uint32_t stage) {
    using enum wgmma::Contiguous;
#pragma unroll
    for (int step = 0; step < S::kD / 16; ++step) {
      const uint64_t b = wgmma::Descriptor<kInner>(stage + step / 4 * S::kStageColumn) +
                         step % 4 * wgmma::Step(kInner);
      if (step == 0) {
        wgmma::Start<kInner>(scores, a[step], b);
      } else {
        wgmma::Add<kInner>(scores, a[step], b);
      }
    }
  }

  // The warpgroup's rows of what is held. A box's row has its 16-byte parts swizzled.
  __device__ static void Load(Rows& to, uint32_t held) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane % 16;
#pragma unroll
    for (int step = 0; step < S::kD / 16; ++step) {
      const int part = (step % 4 * 2 + lane / 16) ^ (row % 8);
      ptx::LoadMatrices(held + step / 4 * S::kHeldColumn + row * kBoxRowBytes + part * 16,
                        to[step]);
    }
  }

  // Starts results += A B: A in registers, B what passes by.
  __device__ static void Add(Results& results, const Packed& a, uint32_t stage) {
    using enum wgmma::Contiguous;
    const uint64_t b = wgmma::Descriptor<kOuter, S::kStageColumn>(stage);
#pragma unroll
    for (int step = 0; step < S::kRows / 16; ++step) {
      wgmma::Add<kOuter>(results, a[step], b + step * wgmma::Step(kOuter));
    }
  }

  __device__ static void Round(const Scores& scores, Packed& packed) {
#pragma unroll
    for (int i = 0; i < S::kRows / 4; ++i) {
      packed[i / 4][i % 4] = Pack(scores[2 * i], scores[2 * i + 1]);
    }
  }
};

// Among the four lanes of a quad, w[k] of lane q and w[q] of lane k change places.
__device__ inline void TransposeQuad(uint32_t (&w)[4], int lane) {
#pragma unroll
  for (int step = 1; step <= 2; ++step) {
    const bool high = (lane & step) != 0;
#pragma unroll
    for (int pair = 0; pair < 2; ++pair) {
      const int low = step == 1 ? 2 * pair : pair;
      const uint32_t got = __shfl_xor_sync(0xffffffff, high ? w[low] : w[low + step], step);
      w[low] = high ? got : w[low];
      w[low + step] = high ? w[low + step] : got;
    }
  }
}

// This thread's part of row `row` of the warpgroup's, in words[k] columns 8 k + 2 (lane % 4) and
// the next, to memory: `to` is the row.
template <int kWords>
__device__ void StoreRow(uint32_t (&words)[kWords], __nv_bfloat16* to, bool inside) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int part = 0; part < kWords / 4; ++part) {
    uint32_t w[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) w[k] = words[4 * part + k];
    TransposeQuad(w, lane);
    if (inside) {
      *reinterpret_cast<uint4*>(to + 32 * part + 8 * (lane % 4)) =
          make_uint4(w[0], w[1], w[2], w[3]);
    }
  }
}

// A word of either half of a head, turned back.
__device__ inline void TurnBack(uint32_t& low, uint32_t& high, float2 c, float2 s) {
  const float2 a = Unpack(low);
  const float2 b = Unpack(high);
  const RopePair x = Rotated({a.x, b.x}, c.x, -s.x);
  const RopePair y = Rotated({a.y, b.y}, c.y, -s.y);
  low = Pack(x.low, y.low);
  high = Pack(x.high, y.high);
}

// Cosines and sines of the pairs of a head's elements that a thread holds, of its two rows.
template <int kD>
struct Angles {
  float2 c[2][kD / 16];
  float2 s[2][kD / 16];
};

// This thread's first of a warpgroup's rows.
__device__ inline int FirstRow() {
  return static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 +
         static_cast<int>(threadIdx.x) % 32 / 4;
}

// Of a warpgroup's rows, `rows` from token `first` on.
template <int kD>
__device__ Angles<kD> LoadAngles(const AttentionBackwardArguments& a, int first, int rows) {
  const float* from[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = FirstRow() + 8 * i;
    const int position = row < rows ? __ldg(a.positions + first + row) : 0;
    from[i] = a.angles + position * a.angle_stride + 2 * (threadIdx.x % 4);
  }
  Angles<kD> angles;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      angles.c[i][k] = __ldg(reinterpret_cast<const float2*>(from[i] + 8 * k));
      angles.s[i][k] = __ldg(reinterpret_cast<const float2*>(from[i] + kD / 2 + 8 * k));
    }
  }
  return angles;
}

// Row i of a thread's two, times `factor` and rounded.
template <int kD>
__device__ void RoundRow(const float (&results)[kD / 2], float factor, int i,
                         uint32_t (&words)[kD / 8]) {
#pragma unroll
  for (int k = 0; k < kD / 8; ++k) {
    const int at = 4 * k + 2 * i;
    words[k] = Pack(results[at] * factor, results[at + 1] * factor);
  }
}

// Rows of results, times `factor`, to memory: `to` is the warpgroup's first row, `rows` what there
// is of them.
template <int kD>
__device__ void Store(const float (&results)[kD / 2], float factor, __nv_bfloat16* to,
                      int64_t stride, int rows) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t words[kD / 8];
    RoundRow<kD>(results, factor, i, words);
    const int row = FirstRow() + 8 * i;
    StoreRow(words, to + row * stride, row < rows);
  }
}

// RopeBackward of what Store stores: the same bits as by a pass over it. Both elements of a pair
// are one thread's.
template <int kD>
__device__ void StoreTurned(const float (&results)[kD / 2], float factor, const Angles<kD>& angles,
                            __nv_bfloat16* to, int64_t stride, int rows) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    uint32_t words[kD / 8];
    RoundRow<kD>(results, factor, i, words);
#pragma unroll
    for (int k = 0; k < kD / 16; ++k) {
      TurnBack(words[k], words[kD / 16 + k], angles.c[i][k], angles.s[i][k]);
    }
    const int row = FirstRow() + 8 * i;
    StoreRow(words, to + row * stride, row < rows);
  }
}

}  // namespace lorad::kernels::cuda::backward
