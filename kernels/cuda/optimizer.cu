#include <cuda_bf16.h>

#include <cassert>
#include <cmath>

#include "kernels/cuda/check.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/optimizer.h"
#include "kernels/cuda/ptx.cuh"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // elements that a thread takes at once: 16 bytes of float32
static_assert(kOptimizerBlock % (kThreads * kQuad) == 0);

// The entry of a thread block: the last whose first block is not after it.
__device__ const OptimizerEntry& EntryOf(const OptimizerTable& table, int64_t block) {
  int low = 0;
  int high = table.count - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.entries[middle].first_block <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return table.entries[low];
}

__device__ float GradientOf(int64_t quanta) {
  return static_cast<float>(static_cast<double>(quanta) * kGradientQuantum);
}

// Calls element(i) on every element of this thread in the entry's block, ascending.
template <typename Element>
__device__ void ForElements(const OptimizerEntry& entry, Element&& element) {
  const int64_t begin = (blockIdx.x - entry.first_block) * kOptimizerBlock;
#pragma unroll
  for (int64_t i = 0; i < kOptimizerBlock; i += kThreads * kQuad) {
    const int64_t first = begin + i + threadIdx.x * kQuad;
#pragma unroll
    for (int j = 0; j < kQuad; ++j) {
      if (first + j < entry.elements) element(first + j);
    }
  }
}

struct Element {
  float p;
  float m;
  float v;
};

__device__ void Step(const AdamWStep& step, const OptimizerEntry& entry, int64_t quanta,
                     Element& e) {
  const float g = GradientOf(quanta) * step.clip_factor;
  e.m = e.m + step.one_minus_beta1 * (g - e.m);
  e.v = e.v * step.beta2 + step.one_minus_beta2 * g * g;
  const float denominator = sqrtf(e.v) / step.sqrt_bias2 + step.eps;
  e.p = e.p * entry.decay - entry.step_size * (e.m / denominator);
}

__device__ void StoreCopy(const OptimizerEntry& entry, int64_t index, float p) {
  if (entry.copy == nullptr) return;
  const int64_t at = index / entry.columns * entry.copy_stride + index % entry.columns;
  if (entry.copy_is_bfloat16) {
    static_cast<__nv_bfloat16*>(entry.copy)[at] = __float2bfloat16_rn(p);
  } else {
    static_cast<float*>(entry.copy)[at] = p;
  }
}

// Four elements at a time: an arena aligns every tensor, and blocks start at multiples of 4096.
__device__ void StepQuad(const AdamWStep& step, const OptimizerEntry& entry, int64_t first) {
  float4* p_at = reinterpret_cast<float4*>(entry.parameter + first);
  float4* m_at = reinterpret_cast<float4*>(entry.exp_avg + first);
  float4* v_at = reinterpret_cast<float4*>(entry.exp_avg_sq + first);
  longlong2* g_at = reinterpret_cast<longlong2*>(entry.gradient + first);
  const float4 p = *p_at;
  const float4 m = *m_at;
  const float4 v = *v_at;
  const longlong2 low = g_at[0];
  const longlong2 high = g_at[1];
  Element e[kQuad] = {{p.x, m.x, v.x}, {p.y, m.y, v.y}, {p.z, m.z, v.z}, {p.w, m.w, v.w}};
  const int64_t quanta[kQuad] = {low.x, low.y, high.x, high.y};
#pragma unroll
  for (int j = 0; j < kQuad; ++j) {
    Step(step, entry, quanta[j], e[j]);
    StoreCopy(entry, first + j, e[j].p);
  }
  *p_at = make_float4(e[0].p, e[1].p, e[2].p, e[3].p);
  *m_at = make_float4(e[0].m, e[1].m, e[2].m, e[3].m);
  *v_at = make_float4(e[0].v, e[1].v, e[2].v, e[3].v);
  g_at[0] = make_longlong2(0, 0);
  g_at[1] = make_longlong2(0, 0);
}

__global__ void __launch_bounds__(kThreads) AdamWKernel(OptimizerTable table, AdamWStep step) {
  ptx::TakeTurn();
  const OptimizerEntry entry = EntryOf(table, blockIdx.x);
  const int64_t begin = (blockIdx.x - entry.first_block) * kOptimizerBlock;
  for (int64_t i = 0; i < kOptimizerBlock; i += kThreads * kQuad) {
    const int64_t first = begin + i + threadIdx.x * kQuad;
    if (first + kQuad <= entry.elements) {
      StepQuad(step, entry, first);
      continue;
    }
    for (int64_t at = first; at < entry.elements; ++at) {
      Element e = {entry.parameter[at], entry.exp_avg[at], entry.exp_avg_sq[at]};
      Step(step, entry, entry.gradient[at], e);
      entry.parameter[at] = e.p;
      entry.exp_avg[at] = e.m;
      entry.exp_avg_sq[at] = e.v;
      entry.gradient[at] = 0;
      StoreCopy(entry, at, e.p);
    }
  }
}

__global__ void __launch_bounds__(kThreads) DropGradientsKernel(OptimizerTable table) {
  ptx::TakeTurn();
  const OptimizerEntry& entry = EntryOf(table, blockIdx.x);
  int64_t* gradient = entry.gradient;
  ForElements(entry, [&](int64_t i) { gradient[i] = 0; });
}

// The sum over 256 threads by halves, valid in thread 0.
__device__ double TreeSum(double value) {
  __shared__ double values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  for (int width = kThreads / 2; width > 0; width /= 2) {
    if (threadIdx.x < width) values[threadIdx.x] += values[threadIdx.x + width];
    __syncthreads();
  }
  return values[0];
}

__global__ void __launch_bounds__(kThreads) SquaresKernel(OptimizerTable table, double* partials) {
  ptx::TakeTurn();
  constexpr int64_t kLimit = static_cast<int64_t>(kGradientLimit / kGradientQuantum);
  const OptimizerEntry& entry = EntryOf(table, blockIdx.x);
  double sum = 0;
  bool outside = false;
  ForElements(entry, [&](int64_t i) {
    const int64_t quanta = entry.gradient[i];
    outside |= quanta >= kLimit || quanta <= -kLimit;
    const double value = GradientOf(quanta);
    sum += value * value;
  });
  const double total = TreeSum(sum);
  const bool any = __syncthreads_or(outside);
  if (threadIdx.x == 0) partials[blockIdx.x] = any ? INFINITY : total;
}

__global__ void __launch_bounds__(kThreads)
    FoldKernel(OptimizerTable table, const double* partials, double* sums) {
  ptx::TakeTurn();
  const OptimizerEntry& entry = table.entries[blockIdx.x];
  const int64_t blocks = (entry.elements + kOptimizerBlock - 1) / kOptimizerBlock;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < blocks; i += kThreads) sum += partials[entry.first_block + i];
  const double total = TreeSum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = total;
}

__global__ void __launch_bounds__(kThreads)
    TotalKernel(const double* sums, int32_t count, double* total) {
  ptx::TakeTurn();
  double sum = 0;
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kThreads) sum += sums[i];
  const double of_all = TreeSum(sum);
  if (threadIdx.x == 0) *total = of_all;
}

__global__ void __launch_bounds__(kThreads)
    InitializeAKernel(uint64_t seed, uint32_t layer, uint32_t target, float bound, float* a,
                      int64_t elements) {
  constexpr int kWords = 4;
  const int64_t block = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (block * kWords >= elements) return;
  const PhiloxCounter random =
      Philox(seed, {{DropoutWord(layer, target, static_cast<uint32_t>(block & 0xFFFF)),
                     static_cast<uint32_t>(block >> 16), 0, kInitializationStep}});
  for (int i = 0; i < kWords && block * kWords + i < elements; ++i) {
    const float uniform = static_cast<float>(random.word[i] >> 8) * 0x1p-24f;  // in [0, 1)
    a[block * kWords + i] = bound * (2.0f * uniform - 1.0f);
  }
}

unsigned int Blocks(const OptimizerTable& table) {
  assert(table.blocks < int64_t{1} << 31);
  return static_cast<unsigned int>(table.blocks);
}

}  // namespace

void AdamW(cudaStream_t stream, const OptimizerTable& table, const AdamWStep& step) {
  if (table.blocks == 0) return;
  LaunchKernel(AdamWKernel, {.grid = Blocks(table), .threads = kThreads, .early = true}, stream,
               table, step);
}

void DropGradients(cudaStream_t stream, const OptimizerTable& table) {
  if (table.blocks == 0) return;
  LaunchKernel(DropGradientsKernel, {.grid = Blocks(table), .threads = kThreads, .early = true},
               stream, table);
}

void SumOfSquares(cudaStream_t stream, const OptimizerTable& table, double* partials, double* sums,
                  double* total) {
  if (table.count == 0) return;
  if (table.blocks > 0)
    LaunchKernel(SquaresKernel, {.grid = Blocks(table), .threads = kThreads, .early = true}, stream,
                 table, partials);
  LaunchKernel(FoldKernel,
               {.grid = static_cast<unsigned int>(table.count), .threads = kThreads, .early = true},
               stream, table, partials, sums);
  LaunchKernel(TotalKernel, {.grid = 1, .threads = kThreads, .early = true}, stream, sums,
               table.count, total);
}

void InitializeA(cudaStream_t stream, uint64_t seed, int32_t layer, int32_t target,
                 const TensorView& a) {
  assert(a.row_stride == a.columns);
  assert(layer >= 0 && layer < kLayersMax && target >= 0 && target < kTargetsMax);
  if (a.elements() == 0) return;
  const float bound = 1.0f / std::sqrt(static_cast<float>(a.columns));
  const int64_t blocks = (a.elements() + 4 * kThreads - 1) / (4 * kThreads);
  LaunchKernel(InitializeAKernel, {.grid = static_cast<unsigned int>(blocks), .threads = kThreads},
               stream, seed, static_cast<uint32_t>(layer), static_cast<uint32_t>(target), bound,
               a.f32(), a.elements());
}

}  // namespace lorad::kernels::cuda
