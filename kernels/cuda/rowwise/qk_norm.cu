#include <algorithm>
#include <bit>
#include <cassert>
#include <utility>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/device/vector.cuh"
#include "kernels/cuda/rowwise/rope.cuh"
#include "kernels/cuda/rowwise/rowwise.h"

// Heads of one row a block. `lanes` threads of a warp, a power of two, have a head: each a unit of
// its first half and the unit that is turned with it, so a head crosses memory once. Sums: a
// thread's elements in ascending order, then a tree of the head's lanes; the head's size decides.
namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHalfMax = 32 * kUnit;  // elements of half a head

struct Heads {
  const float* q_weight;  // [D]
  const float* k_weight;  // [D]
  float eps;
  int q_heads;
  int heads;  // of q and of k
  int half;   // D / 2
  int lanes;
};

// This thread's part of its heads.
struct Place {
  int first;  // column of the first half
  bool mine;  // false: beyond the half, there to take part in the sums
};

__device__ Place PlaceOf(const Heads& heads) {
  const int first = static_cast<int>(threadIdx.x) % heads.lanes * kUnit;
  return {first, first < heads.half};
}

// Both units of a row's head.
struct Pair {
  Unit low;
  Unit high;
};

template <typename Row>
__device__ Pair LoadPair(const Row* head, const Place& place, int half, bool aligned) {
  if (!place.mine) return {};
  return {LoadUnit(head, place.first, half, aligned),
          LoadUnit(head + half, place.first, half, aligned)};
}

template <typename T>
__device__ void StorePair(const Pair& pair, T* head, const Place& place, int half, bool aligned) {
  if (!place.mine) return;
  StoreUnit(pair.low, head, place.first, half, aligned);
  StoreUnit(pair.high, head + half, place.first, half, aligned);
}

__device__ float SumOfLanes(float value, int lanes) {
  for (int step = lanes / 2; step > 0; step /= 2) {
    value += __shfl_xor_sync(0xFFFFFFFFu, value, step);
  }
  return value;
}

// Sum of a * b over the head, in all of its lanes.
__device__ float SumOfProducts(const Pair& a, const Pair& b, int lanes) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum += a.low.value[i] * b.low.value[i];
#pragma unroll
  for (int i = 0; i < kUnit; ++i) sum += a.high.value[i] * b.high.value[i];
  return SumOfLanes(sum, lanes);
}

// a = w o a.
__device__ void Weigh(const Pair& w, Pair& a) {
#pragma unroll
  for (int i = 0; i < kUnit; ++i) {
    a.low.value[i] *= w.low.value[i];
    a.high.value[i] *= w.high.value[i];
  }
}

// Calls run(head, whether there is one) so that all lanes of a warp run alike.
template <typename Run>
__device__ void ForHeads(const Heads& heads, Run&& run) {
  const int at_once = static_cast<int>(blockDim.x) / heads.lanes;
  const int mine = static_cast<int>(threadIdx.x) / heads.lanes;
  for (int first = 0; first < heads.heads; first += at_once) {
    run(min(first + mine, heads.heads - 1), first + mine < heads.heads);
  }
}

__device__ Pair WeightOf(const Heads& heads, int head, const Place& place) {
  const float* weight = head < heads.q_heads ? heads.q_weight : heads.k_weight;
  return LoadPair(weight, place, heads.half, heads.half % kUnit == 0);
}

// kTurned: positions and angles are there.
template <typename T, bool kTurned>
__global__ void __launch_bounds__(kThreads)
    NormRopeKernel(Heads heads, Rows<const T> x, const int32_t* positions, Rows<const float> angles,
                   Rows<T> y) {
  ptx::TakeTurn();
  const Place place = PlaceOf(heads);
  const int half = heads.half;
  Pair turn = {};  // cosines and sines
  if constexpr (kTurned) {
    turn = LoadPair(angles.row(positions[blockIdx.x]), place, half, angles.aligned);
  }
  ForHeads(heads, [&](int head, bool there) {
    Pair value = LoadPair(x.row(blockIdx.x) + head * 2 * half, place, half, x.aligned);
    const float squares = SumOfProducts(value, value, heads.lanes);
    const float r = rsqrtf(squares / static_cast<float>(2 * half) + heads.eps);
    const Pair weight = WeightOf(heads, head, place);
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      value.low.value[i] *= r * weight.low.value[i];
      value.high.value[i] *= r * weight.high.value[i];
      if constexpr (kTurned) {
        const RopePair turned = Rotated({value.low.value[i], value.high.value[i]},
                                        turn.low.value[i], turn.high.value[i]);
        value.low.value[i] = turned.low;
        value.high.value[i] = turned.high;
      }
    }
    if (there) StorePair(value, y.row(blockIdx.x) + head * 2 * half, place, half, y.aligned);
  });
}

template <typename T>
__global__ void __launch_bounds__(kThreads)
    NormBackwardKernel(Heads heads, Rows<const T> x, Rows<T> d) {
  ptx::TakeTurn();
  const Place place = PlaceOf(heads);
  const int half = heads.half;
  ForHeads(heads, [&](int head, bool there) {
    const Pair value = LoadPair(x.row(blockIdx.x) + head * 2 * half, place, half, x.aligned);
    T* gradient = d.row(blockIdx.x) + head * 2 * half;
    Pair dy = LoadPair(gradient, place, half, d.aligned);
    Weigh(WeightOf(heads, head, place), dy);
    const float size = static_cast<float>(2 * half);
    const float squares = SumOfProducts(value, value, heads.lanes);
    const float products = SumOfProducts(dy, value, heads.lanes);
    const float r = rsqrtf(squares / size + heads.eps);
    const float c = products / size * r * r;
#pragma unroll
    for (int i = 0; i < kUnit; ++i) {
      dy.low.value[i] = r * (dy.low.value[i] - value.low.value[i] * c);
      dy.high.value[i] = r * (dy.high.value[i] - value.high.value[i] * c);
    }
    if (there) StorePair(dy, gradient, place, half, d.aligned);
  });
}

Heads HeadsOf(const TensorView& x, const QkNorm& norm) {
  const int64_t size = norm.q_weight.columns;
  const int half = static_cast<int>(size / 2);
  const auto units = static_cast<unsigned>((half + kUnit - 1) / kUnit);
  return {.q_weight = norm.q_weight.f32(),
          .k_weight = norm.k_weight.f32(),
          .eps = norm.eps,
          .q_heads = static_cast<int>(norm.q_columns / size),
          .heads = static_cast<int>(x.columns / size),
          .half = half,
          .lanes = static_cast<int>(std::bit_ceil(units))};
}

// Whole warps, and no more than have a head.
int ThreadsOf(const Heads& heads) {
  return std::min(kThreads, (heads.heads * heads.lanes + 31) / 32 * 32);
}

// Both halves of heads must allow words.
template <typename T>
Rows<T> HalvesOf(const TensorView& view, int half) {
  Rows<T> rows = RowsOf<T>(view);
  rows.aligned = rows.aligned && half % kUnit == 0;
  return rows;
}

// Of runs that are heads of one size, which the kernels take.
bool OfHeads(const QkNorm& norm) {
  const int64_t size = norm.q_weight.columns;
  return norm.k_weight.columns == size && size % 2 == 0 && size / 2 <= kHalfMax;
}

// The part of a view that q or k has, and the weight of its only run.
struct Part {
  TensorView view;
  TensorView weight;
};
std::pair<Part, Part> PartsOf(const TensorView& view, const QkNorm& norm) {
  assert(norm.q_weight.columns == norm.q_columns);
  assert(norm.k_weight.columns == view.columns - norm.q_columns);
  return {{view.Columns(0, norm.q_columns), norm.q_weight},
          {view.Columns(norm.q_columns, norm.k_weight.columns), norm.k_weight}};
}

}  // namespace

void QkNormRope(cudaStream_t stream, const BatchTables& batch, const TensorView& x,
                const QkNorm& norm, const HeadAngles& angles, const TensorView& y) {
  assert(x.dtype == y.dtype && x.rows == y.rows && x.columns == y.columns);
  assert(x.rows == batch.tokens);
  if (x.elements() == 0) return;
  const bool turns = !angles.empty() && angles.whole() && OfHeads(norm) &&
                     angles.head_size == norm.q_weight.columns;
  if (!OfHeads(norm)) {
    const auto [q, k] = PartsOf(x, norm);
    const auto [q_to, k_to] = PartsOf(y, norm);
    RmsNorm(stream, q.view, q.weight, norm.eps, q_to.view);
    RmsNorm(stream, k.view, k.weight, norm.eps, k_to.view);
  } else {
    const Heads heads = HeadsOf(x, norm);
    const LaunchShape shape = {
        .grid = static_cast<unsigned int>(x.rows), .threads = ThreadsOf(heads), .early = true};
    ForType(x.dtype, [&]<typename T>(T) {
      const auto launch = [&](auto* kernel, const Rows<const float>& table) {
        LaunchKernel(kernel, shape, stream, heads, HalvesOf<const T>(x, heads.half),
                     batch.positions, table, HalvesOf<T>(y, heads.half));
      };
      turns ? launch(NormRopeKernel<T, true>, HalvesOf<const float>(angles.table, heads.half))
            : launch(NormRopeKernel<T, false>, {});
    });
  }
  if (!angles.empty() && !turns) Rope(stream, batch, angles, 1.0f, y);
}

void QkNormBackward(cudaStream_t stream, const TensorView& x, const QkNorm& norm,
                    const TensorView& d) {
  assert(x.dtype == d.dtype && x.rows == d.rows && x.columns == d.columns);
  if (x.elements() == 0) return;
  if (!OfHeads(norm)) {
    const auto [q, k] = PartsOf(x, norm);
    const auto [dq, dk] = PartsOf(d, norm);
    RmsNormGradient(stream, q.view, q.weight, norm.eps, dq.view, dq.view);
    return RmsNormGradient(stream, k.view, k.weight, norm.eps, dk.view, dk.view);
  }
  const Heads heads = HeadsOf(x, norm);
  ForType(x.dtype, [&]<typename T>(T) {
    LaunchKernel(
        NormBackwardKernel<T>,
        {.grid = static_cast<unsigned int>(x.rows), .threads = ThreadsOf(heads), .early = true},
        stream, heads, HalvesOf<const T>(x, heads.half), HalvesOf<T>(d, heads.half));
  });
}

}  // namespace lorad::kernels::cuda
