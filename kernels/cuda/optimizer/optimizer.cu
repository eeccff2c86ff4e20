#include <cuda_bf16.h>

#include <algorithm>
#include <cassert>
#include <cmath>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/cuda/device/ptx.cuh"
#include "kernels/cuda/optimizer/optimizer.h"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kQuad = 4;  // elements that a thread takes at once: 16 bytes of float32
constexpr int kRound = kThreads * kQuad;
constexpr int kRounds = kOptimizerBlock / kRound;
static_assert(kOptimizerBlock % kRound == 0);
constexpr int kStepBlocks = 3;  // of AdamW on a multiprocessor: with four, registers spill

// Jobs of one launch: their parameters are the kernel's, and those have 4 KB.
constexpr int kJobsOfLaunch = 32;

template <typename Job>
struct Launch {
  int32_t first[kJobsOfLaunch + 1];  // thread blocks before each job
  Job jobs[kJobsOfLaunch];
};
static_assert(sizeof(Launch<AdamWJob>) <= 4096 && sizeof(Launch<SquaresJob>) <= 4096);

// The job of this thread block, and its index there.
template <typename Job>
__device__ const Job& JobOf(const Launch<Job>& launch, int& block) {
  int job = 0;
  while (static_cast<int>(blockIdx.x) >= launch.first[job + 1]) ++job;
  block = static_cast<int>(blockIdx.x) - launch.first[job];
  return launch.jobs[job];
}

// Elements of a matrix that a thread block has.
struct Range {
  int32_t first;
  int32_t count;
};

__device__ Range RangeOf(const OptimizerEntry& entry, int block) {
  const int32_t first = (block - entry.first_block) * static_cast<int32_t>(kOptimizerBlock);
  return {first, min(static_cast<int32_t>(kOptimizerBlock), entry.elements - first)};
}

// A pointer out of a table, which the compiler cannot know to be no other kind of memory's.
template <typename T>
__device__ T* InGlobal(T* pointer) {
  __builtin_assume(__isGlobal(pointer));
  return pointer;
}

__device__ float GradientOf(int64_t quanta) {
  return static_cast<float>(static_cast<double>(quanta) * kGradientQuantum);
}

// ---- AdamW ----

struct Element {
  float p;
  float m;
  float v;
};

struct Rates {
  float decay;      // 1 - learning_rate * weight_decay
  float step_size;  // learning_rate / (1 - beta1^step)
};

// As the host would round them: no multiplication joins an addition.
__device__ Rates RatesOf(const AdamWJob& job, const OptimizerEntry& entry) {
  const double rate = __dmul_rn(job.learning_rate, entry.learning_rate_factor);
  return {static_cast<float>(__dsub_rn(1, __dmul_rn(rate, entry.weight_decay))),
          static_cast<float>(__ddiv_rn(rate, job.bias1))};
}

__device__ void Step(const AdamWJob& job, const Rates& rates, int64_t quanta, Element& e) {
  const float g = GradientOf(quanta) * job.clip_factor;
  e.m = e.m + job.one_minus_beta1 * (g - e.m);
  e.v = e.v * job.beta2 + job.one_minus_beta2 * g * g;
  const float denominator = sqrtf(e.v) / job.sqrt_bias2 + job.eps;
  e.p = e.p * rates.decay - rates.step_size * (e.m / denominator);
}

__device__ int64_t CopyIndex(const OptimizerEntry& entry, int32_t index) {
  const int32_t row = index / entry.columns;
  return static_cast<int64_t>(row) * entry.copy_stride + (index - row * entry.columns);
}

__device__ void StoreCopy(const OptimizerEntry& entry, int32_t index, float p) {
  if (entry.copy == nullptr) return;
  const int64_t at = CopyIndex(entry, index);
  if (entry.copy_is_bfloat16) {
    static_cast<__nv_bfloat16*>(entry.copy)[at] = __float2bfloat16_rn(p);
  } else {
    static_cast<float*>(entry.copy)[at] = p;
  }
}

__device__ void StoreCopies(const OptimizerEntry& entry, int32_t first, const Element (&e)[kQuad]) {
  if (!entry.copy_in_words) {
#pragma unroll
    for (int j = 0; j < kQuad; ++j) StoreCopy(entry, first + j, e[j].p);
    return;
  }
  const int64_t at = entry.copy_stride == entry.columns ? first : CopyIndex(entry, first);
  __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(e[0].p, e[1].p),
                             __floats2bfloat162_rn(e[2].p, e[3].p)};
  *reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(InGlobal(entry.copy)) + at) =
      *reinterpret_cast<uint2*>(pairs);
}

// What a step reads of four elements: an arena aligns every tensor, and blocks start at multiples
// of 4096.
struct Quad {
  float4 p;
  float4 m;
  float4 v;
  longlong2 low;
  longlong2 high;
};

__device__ Quad LoadQuad(const OptimizerEntry& entry, int32_t first) {
  const longlong2* g = reinterpret_cast<const longlong2*>(InGlobal(entry.gradient) + first);
  return {*reinterpret_cast<const float4*>(InGlobal(entry.parameter) + first),
          *reinterpret_cast<const float4*>(InGlobal(entry.exp_avg) + first),
          *reinterpret_cast<const float4*>(InGlobal(entry.exp_avg_sq) + first), g[0], g[1]};
}

__device__ void StepQuad(const AdamWJob& job, const Rates& rates, const OptimizerEntry& entry,
                         int32_t first, const Quad& quad) {
  const auto& [p, m, v, low, high] = quad;
  Element e[kQuad] = {{p.x, m.x, v.x}, {p.y, m.y, v.y}, {p.z, m.z, v.z}, {p.w, m.w, v.w}};
  const int64_t quanta[kQuad] = {low.x, low.y, high.x, high.y};
#pragma unroll
  for (int j = 0; j < kQuad; ++j) Step(job, rates, quanta[j], e[j]);
  StoreCopies(entry, first, e);
  const auto store = [&](float* to, const float4& values) {
    *reinterpret_cast<float4*>(InGlobal(to) + first) = values;
  };
  store(entry.parameter, make_float4(e[0].p, e[1].p, e[2].p, e[3].p));
  store(entry.exp_avg, make_float4(e[0].m, e[1].m, e[2].m, e[3].m));
  store(entry.exp_avg_sq, make_float4(e[0].v, e[1].v, e[2].v, e[3].v));
  longlong2* gradient = reinterpret_cast<longlong2*>(InGlobal(entry.gradient) + first);
  gradient[0] = make_longlong2(0, 0);
  gradient[1] = make_longlong2(0, 0);
}

__device__ void StepOne(const AdamWJob& job, const Rates& rates, const OptimizerEntry& entry,
                        int32_t at) {
  Element e = {entry.parameter[at], entry.exp_avg[at], entry.exp_avg_sq[at]};
  Step(job, rates, entry.gradient[at], e);
  entry.parameter[at] = e.p;
  entry.exp_avg[at] = e.m;
  entry.exp_avg_sq[at] = e.v;
  entry.gradient[at] = 0;
  StoreCopy(entry, at, e.p);
}

__global__ void __launch_bounds__(kThreads, kStepBlocks)
    AdamWKernel(const __grid_constant__ Launch<AdamWJob> launch) {
  __shared__ Rates shared_rates;
  ptx::TakeTurn();
  int block;
  const AdamWJob& job = JobOf(launch, block);
  const OptimizerEntry entry = job.table.entries[job.table.entry_of_block[block]];
  if (threadIdx.x == 0) shared_rates = RatesOf(job, entry);
  __syncthreads();
  const Rates rates = shared_rates;
  const Range range = RangeOf(entry, block);
  const int32_t end = range.first + range.count;
  int32_t first = range.first + static_cast<int32_t>(threadIdx.x) * kQuad;
  for (; first + kQuad <= end; first += kRound) {
    StepQuad(job, rates, entry, first, LoadQuad(entry, first));
  }
  for (; first < end; ++first) StepOne(job, rates, entry, first);
}

__global__ void __launch_bounds__(kThreads) DropGradientsKernel(OptimizerTable table) {
  ptx::TakeTurn();
  const int block = static_cast<int>(blockIdx.x);
  const OptimizerEntry entry = table.entries[table.entry_of_block[block]];
  const Range range = RangeOf(entry, block);
  for (int32_t i = threadIdx.x; i < range.count; i += kThreads) entry.gradient[range.first + i] = 0;
}

// ---- sums of squares ----

// The sum over 256 threads by halves, valid in thread 0: the first halves by the first warp, whose
// lane l has the threads l, l + 32, ...
__device__ double TreeSum(double value) {
  constexpr int kWarp = 32;
  constexpr int kWarps = kThreads / kWarp;
  __shared__ double values[kThreads];
  values[threadIdx.x] = value;
  __syncthreads();
  if (threadIdx.x >= kWarp) return 0;
  double part[kWarps];
#pragma unroll
  for (int i = 0; i < kWarps; ++i) part[i] = values[threadIdx.x + i * kWarp];
#pragma unroll
  for (int width = kWarps / 2; width > 0; width /= 2) {
#pragma unroll
    for (int i = 0; i < width; ++i) part[i] += part[i + width];
  }
#pragma unroll
  for (int width = kWarp / 2; width > 0; width /= 2) {
    part[0] += __shfl_down_sync(0xFFFFFFFFu, part[0], width);
  }
  return part[0];
}

// All that a thread has of a range, zeros behind its end: they change no sum.
struct Gradients {
  longlong2 low[kRounds];
  longlong2 high[kRounds];
};

// kWhole: there is no end.
template <bool kWhole>
__device__ Gradients LoadGradients(const int64_t* gradient, int32_t count) {
  Gradients g;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int32_t i = round * kRound + static_cast<int32_t>(threadIdx.x) * kQuad;
    if (kWhole || i + kQuad <= count) {
      const longlong2* from = reinterpret_cast<const longlong2*>(gradient + i);
      g.low[round] = from[0];
      g.high[round] = from[1];
      continue;
    }
    g.low[round].x = i < count ? gradient[i] : 0;
    g.low[round].y = i + 1 < count ? gradient[i + 1] : 0;
    g.high[round] = make_longlong2(i + 2 < count ? gradient[i + 2] : 0, 0);
  }
  return g;
}

__global__ void __launch_bounds__(kThreads)
    SquaresKernel(const __grid_constant__ Launch<SquaresJob> launch) {
  constexpr int64_t kLimit = static_cast<int64_t>(kGradientLimit / kGradientQuantum);
  ptx::TakeTurn();
  int block;
  const OptimizerTable& table = JobOf(launch, block).table;
  const OptimizerEntry& entry = table.entries[table.entry_of_block[block]];
  const Range range = RangeOf(entry, block);
  const int64_t* gradient = InGlobal(entry.gradient) + range.first;
  const Gradients g = range.count == kOptimizerBlock ? LoadGradients<true>(gradient, range.count)
                                                     : LoadGradients<false>(gradient, range.count);
  double sum = 0;
  bool outside = false;
  const auto add = [&](int64_t quanta) {
    outside |= quanta >= kLimit || quanta <= -kLimit;
    const double value = GradientOf(quanta);
    sum += value * value;
  };
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    add(g.low[round].x);
    add(g.low[round].y);
    add(g.high[round].x);
    add(g.high[round].y);
  }
  const double total = TreeSum(outside ? INFINITY : sum);
  if (threadIdx.x == 0) table.partials[block] = total;
}

// A thread block a matrix.
__global__ void __launch_bounds__(kThreads)
    FoldKernel(const __grid_constant__ Launch<SquaresJob> launch) {
  ptx::TakeTurn();
  int index;
  const SquaresJob& job = JobOf(launch, index);
  const OptimizerTable& table = job.table;
  const OptimizerEntry& entry = table.entries[index];
  const int32_t blocks = static_cast<int32_t>(OptimizerBlocks(entry.elements));
  double sum = 0;
  for (int32_t i = threadIdx.x; i < blocks; i += kThreads) {
    sum += table.partials[entry.first_block + i];
  }
  const double total = TreeSum(sum);
  if (threadIdx.x == 0) job.sums[index] = total;
}

__global__ void TakeMarkKernel(int32_t* mark, int32_t* to) {
  ptx::TakeTurn();
  *to = *mark;
  *mark = 0;
}

// ---- initialization ----

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

// ---- launches ----

// size(job): its thread blocks. Returns those of all jobs.
template <typename Job, typename Size>
unsigned int Cut(Launch<Job>& launch, int count, Size&& size) {
  int64_t blocks = 0;
  for (int i = 0; i < kJobsOfLaunch + 1; ++i) {
    launch.first[i] = static_cast<int32_t>(blocks);
    if (i < count) blocks += size(launch.jobs[i]);
  }
  assert(blocks < int64_t{1} << 31);
  return static_cast<unsigned int>(blocks);
}

// part(launch, count) for all jobs, as many at a time as a launch takes.
template <typename Job, typename Part>
void ForLaunches(std::span<const Job> jobs, Part&& part) {
  for (size_t done = 0; done < jobs.size(); done += kJobsOfLaunch) {
    const std::span<const Job> some =
        jobs.subspan(done, std::min<size_t>(kJobsOfLaunch, jobs.size() - done));
    Launch<Job> launch;
    std::copy(some.begin(), some.end(), launch.jobs);
    part(launch, static_cast<int>(some.size()));
  }
}

}  // namespace

void AdamW(cudaStream_t stream, std::span<const AdamWJob> jobs) {
  ForLaunches(jobs, [&](Launch<AdamWJob>& launch, int count) {
    const unsigned int blocks =
        Cut(launch, count, [](const AdamWJob& job) { return job.table.blocks; });
    if (blocks == 0) return;
    LaunchKernel(AdamWKernel, {.grid = blocks, .threads = kThreads, .early = true}, stream, launch);
  });
}

void DropGradients(cudaStream_t stream, const OptimizerTable& table) {
  if (table.blocks == 0) return;
  LaunchKernel(
      DropGradientsKernel,
      {.grid = static_cast<unsigned int>(table.blocks), .threads = kThreads, .early = true}, stream,
      table);
}

void SumsOfSquares(cudaStream_t stream, std::span<const SquaresJob> jobs) {
  ForLaunches(jobs, [&](Launch<SquaresJob>& launch, int count) {
    const unsigned int blocks =
        Cut(launch, count, [](const SquaresJob& job) { return job.table.blocks; });
    if (blocks > 0) {
      LaunchKernel(SquaresKernel, {.grid = blocks, .threads = kThreads, .early = true}, stream,
                   launch);
    }
    const unsigned int matrices =
        Cut(launch, count, [](const SquaresJob& job) { return job.table.count; });
    if (matrices > 0) {
      LaunchKernel(FoldKernel, {.grid = matrices, .threads = kThreads, .early = true}, stream,
                   launch);
    }
  });
}

void TakeMark(cudaStream_t stream, int32_t* mark, int32_t* to) {
  LaunchKernel(TakeMarkKernel, {.grid = 1, .threads = 1, .early = true}, stream, mark, to);
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
