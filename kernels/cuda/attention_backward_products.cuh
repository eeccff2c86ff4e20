// What a warpgroup of attention's backward (attention_backward.h) asks of the matrix units, and how
// its results reach memory.
//
// Thread t holds of a tile of scores, for i < 2, j < kRows / 8 and c < 2, the element at row
// 16 (t / 32) + (t % 32) / 4 + 8 i of its warpgroup's and at row 8 j + 2 (t % 4) + c of those that
// pass by, in [4 j + 2 i + c]. Results likewise, with columns of the head in place of the latter.
#ifndef LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_PRODUCTS_CUH_
#define LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_PRODUCTS_CUH_

#include "kernels/cuda/attention_backward.cuh"
#include "kernels/cuda/element.cuh"

namespace lorad::kernels::cuda::backward {

inline constexpr float kLog2E = 1.44269504f;

// What both parts need of the matrix units.
template <typename S>
struct Products {
  using Scores = float[S::kRows / 2];
  using Packed = uint32_t[S::kRows / 16][4];
  using Results = float[S::kD / 2];

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
      (high ? w[low] : w[low + step]) = got;
    }
  }
}

// Rows of results, times `factor`, to memory: `to` is the warpgroup's first row, `rows` what there
// is of them.
template <typename S>
__device__ void Store(const float (&results)[S::kD / 2], float factor, __nv_bfloat16* to,
                      int64_t stride, int rows) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int first = static_cast<int>(threadIdx.x) % kWarpgroup / 32 * 16 + lane / 4;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + 8 * i;
#pragma unroll
    for (int part = 0; part < S::kD / 32; ++part) {
      uint32_t words[4];
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const int at = 4 * (4 * part + k) + 2 * i;
        words[k] = Pack(results[at] * factor, results[at + 1] * factor);
      }
      TransposeQuad(words, lane);
      if (row < rows) {
        *reinterpret_cast<uint4*>(to + row * stride + 32 * part + 8 * (lane % 4)) =
            make_uint4(words[0], words[1], words[2], words[3]);
      }
    }
  }
}

}  // namespace lorad::kernels::cuda::backward

#endif  // LORAD_KERNELS_CUDA_ATTENTION_BACKWARD_PRODUCTS_CUH_
