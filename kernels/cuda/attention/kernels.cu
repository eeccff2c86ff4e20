#include <cassert>

#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/element.cuh"
#include "kernels/cuda/device/launch.h"

namespace lorad::kernels::cuda {
namespace {

constexpr int kTile = 32;  // queries, and keys, of a tile
constexpr int kThreads = 256;
constexpr int kRowsPerWarp = kTile / (kThreads / 32);
constexpr int kColumnsPerLane = static_cast<int>(kOwnHeadSizeMax) / 32;

__device__ float WarpMax(float value) {
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFF, value, step));
  }
  return value;
}

// One head's rows of one sequence in one tensor.
template <typename T>
struct HeadRows {
  T* data;
  int64_t stride;

  __device__ HeadRows(T* tensor, int64_t row_stride, int64_t first_row, int head, int head_size)
      : data(tensor + first_row * row_stride + head * head_size), stride(row_stride) {}
  __device__ T* row(int index) const { return data + index * stride; }
};

// Rows [first, first + kTile) into shared memory [kTile, d + 1]; rows from `rows` on are zero.
template <typename T>
__device__ void LoadTile(const HeadRows<const T>& from, int first, int rows, int d, float* to) {
  for (int row = threadIdx.x / 32; row < kTile; row += kThreads / 32) {
    for (int column = threadIdx.x % 32; column < d; column += 32) {
      to[row * (d + 1) + column] =
          first + row < rows ? ToFloat(from.row(first + row)[column]) : 0.0f;
    }
  }
}

__device__ float Dot(const float* x, const float* y, int d) {
  float sum = 0;
  for (int i = 0; i < d; ++i) sum = fmaf(x[i], y[i], sum);
  return sum;
}

// acc[j] += sum over the tile's rows r of weights[r] * tile[r][lane + 32 j].
__device__ void AddWeighted(const float* weights, const float* tile, int d, float* acc) {
  const int lane = threadIdx.x % 32;
  for (int r = 0; r < kTile; ++r) {
    const float weight = weights[r];
#pragma unroll
    for (int j = 0; j < kColumnsPerLane; ++j) {
      const int column = lane + 32 * j;
      if (column < d) acc[j] = fmaf(weight, tile[r * (d + 1) + column], acc[j]);
    }
  }
}

template <typename T>
__device__ void StoreRow(const float* acc, float factor, int d, T* to) {
#pragma unroll
  for (int j = 0; j < kColumnsPerLane; ++j) {
    const int column = static_cast<int>(threadIdx.x % 32) + 32 * j;
    if (column < d) to[column] = FromFloat<T>(acc[j] * factor);
  }
}

// Of a query, the first key that it sees.
__device__ int FirstKey(const AttentionArguments& a, int query) {
  return a.window == 0 ? 0 : max(query - a.window + 1, 0);
}

// Of q k^T: the score that the softmax sees, and the slope of the cap there.
struct Score {
  float value;
  float slope;
};
template <bool kCapped>
__device__ Score ScoreOf(const AttentionArguments& a, float dot) {
  if constexpr (!kCapped) return {dot * a.scale, 1.0f};
  const float t = tanhf(dot * a.scale / a.cap);
  return {a.cap * t, 1.0f - t * t};
}

// Grid: (tiles of queries, heads, sequences). A warp has kRowsPerWarp queries; a lane is a key.
template <typename T, bool kCapped>
__global__ void __launch_bounds__(kThreads) ForwardKernel(AttentionArguments a) {
  const int rows = a.rows[blockIdx.z];
  const int first = static_cast<int>(blockIdx.x) * kTile;
  if (first >= rows) return;
  const int64_t begin = a.first_rows[blockIdx.z];
  const int d = a.head_size;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const HeadRows<const T> q(static_cast<const T*>(a.q), a.strides.q, begin, head, d);
  const HeadRows<const T> k(static_cast<const T*>(a.k), a.strides.k, begin, kv_head, d);
  const HeadRows<const T> v(static_cast<const T*>(a.v), a.strides.v, begin, kv_head, d);
  const HeadRows<T> out(static_cast<T*>(a.out), a.strides.out, begin, head, d);

  extern __shared__ float shared[];
  float* q_tile = shared;
  float* k_tile = q_tile + kTile * (d + 1);
  float* v_tile = k_tile + kTile * (d + 1);
  float* weights = v_tile + kTile * (d + 1);  // [kTile, kTile + 1]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * kRowsPerWarp;  // the warp's first

  LoadTile(q, first, rows, d, q_tile);
  float max[kRowsPerWarp];
  float sum[kRowsPerWarp];
  float acc[kRowsPerWarp][kColumnsPerLane] = {};
  for (int i = 0; i < kRowsPerWarp; ++i) {
    max[i] = -INFINITY;
    sum[i] = 0;
  }
  for (int key = FirstKey(a, first) / kTile * kTile; key <= first; key += kTile) {
    __syncthreads();
    LoadTile(k, key, rows, d, k_tile);
    LoadTile(v, key, rows, d, v_tile);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowsPerWarp; ++i) {
      const int query = first + row + i;
      const bool visible = key + lane <= query && key + lane >= FirstKey(a, query);
      const float dot = Dot(q_tile + (row + i) * (d + 1), k_tile + lane * (d + 1), d);
      const float score = visible ? ScoreOf<kCapped>(a, dot).value : -INFINITY;
      const float new_max = fmaxf(max[i], WarpMax(score));
      // Nothing was seen so far where a window begins behind the tile.
      const float rescale = new_max == -INFINITY ? 1.0f : expf(max[i] - new_max);
      const float weight = visible ? expf(score - new_max) : 0.0f;
      max[i] = new_max;
      sum[i] = sum[i] * rescale + WarpSum(weight);
      weights[(row + i) * (kTile + 1) + lane] = weight;
#pragma unroll
      for (int j = 0; j < kColumnsPerLane; ++j) acc[i][j] *= rescale;
      __syncwarp();
      AddWeighted(weights + (row + i) * (kTile + 1), v_tile, d, acc[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int query = first + row + i;
    if (query >= rows) break;
    StoreRow(acc[i], 1.0f / sum[i], d, out.row(query));
    if (lane == 0) a.lse[(begin + query) * a.strides.lse + head] = max[i] + logf(sum[i]);
  }
}

// delta = sum(dout * out) of one row, by one warp.
template <typename T>
__device__ float Delta(const T* dout, const T* out, int d) {
  float sum = 0;
  for (int i = static_cast<int>(threadIdx.x) % 32; i < d; i += 32) {
    sum = fmaf(ToFloat(dout[i]), ToFloat(out[i]), sum);
  }
  return WarpSum(sum);
}

// Grid as ForwardKernel. dq = scale * sum over keys of ds k.
template <typename T, bool kCapped>
__global__ void __launch_bounds__(kThreads) BackwardQueryKernel(AttentionArguments a) {
  const int rows = a.rows[blockIdx.z];
  const int first = static_cast<int>(blockIdx.x) * kTile;
  if (first >= rows) return;
  const int64_t begin = a.first_rows[blockIdx.z];
  const int d = a.head_size;
  const int head = static_cast<int>(blockIdx.y);
  const int kv_head = head / (a.heads / a.kv_heads);
  const HeadRows<const T> q(static_cast<const T*>(a.q), a.strides.q, begin, head, d);
  const HeadRows<const T> k(static_cast<const T*>(a.k), a.strides.k, begin, kv_head, d);
  const HeadRows<const T> v(static_cast<const T*>(a.v), a.strides.v, begin, kv_head, d);
  const HeadRows<const T> out(static_cast<const T*>(a.out), a.strides.out, begin, head, d);
  const HeadRows<const T> dout(static_cast<const T*>(a.dout), a.strides.dout, begin, head, d);
  const HeadRows<T> dq(static_cast<T*>(a.dq), a.strides.dq, begin, head, d);

  extern __shared__ float shared[];
  float* q_tile = shared;
  float* dout_tile = q_tile + kTile * (d + 1);
  float* k_tile = dout_tile + kTile * (d + 1);
  float* v_tile = k_tile + kTile * (d + 1);
  float* weights = v_tile + kTile * (d + 1);  // [kTile, kTile + 1]
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * kRowsPerWarp;

  LoadTile(q, first, rows, d, q_tile);
  LoadTile(dout, first, rows, d, dout_tile);
  float lse[kRowsPerWarp] = {};
  float delta[kRowsPerWarp] = {};
  float acc[kRowsPerWarp][kColumnsPerLane] = {};
  for (int i = 0; i < kRowsPerWarp && first + row + i < rows; ++i) {
    const int query = first + row + i;
    lse[i] = a.lse[(begin + query) * a.strides.lse + head];
    delta[i] = Delta(dout.row(query), out.row(query), d);
  }
  for (int key = FirstKey(a, first) / kTile * kTile; key <= first; key += kTile) {
    __syncthreads();
    LoadTile(k, key, rows, d, k_tile);
    LoadTile(v, key, rows, d, v_tile);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kRowsPerWarp; ++i) {
      const int query = first + row + i;
      const bool visible = key + lane <= query && key + lane >= FirstKey(a, query);
      const float dot = Dot(q_tile + (row + i) * (d + 1), k_tile + lane * (d + 1), d);
      const float dp = Dot(dout_tile + (row + i) * (d + 1), v_tile + lane * (d + 1), d);
      const Score score = ScoreOf<kCapped>(a, dot);
      const float p = expf(score.value - lse[i]);
      const float ds = p * (dp - delta[i]) * score.slope;
      weights[(row + i) * (kTile + 1) + lane] = visible ? ds : 0.0f;
      __syncwarp();
      AddWeighted(weights + (row + i) * (kTile + 1), k_tile, d, acc[i]);
    }
  }
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const int query = first + row + i;
    if (query < rows) StoreRow(acc[i], a.scale, d, dq.row(query));
  }
}

// Shared memory of BackwardKeyKernel.
struct KeyTiles {
  float* k;
  float* v;
  float* q;
  float* dout;
  float* p;      // [kTile, kTile + 1]: rows are keys
  float* ds;     // the same
  float* lse;    // [kTile]
  float* delta;  // [kTile]
};

// The part of one tile of queries in dk and dv of the warp's keys; a lane is a query.
template <bool kCapped>
__device__ void AddQueries(const AttentionArguments& a, const KeyTiles& tiles, int key, int query,
                           int rows, float (*dk)[kColumnsPerLane], float (*dv)[kColumnsPerLane]) {
  const int d = a.head_size;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * kRowsPerWarp;
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    const bool visible = key + row + i <= query + lane && query + lane < rows &&
                         key + row + i >= FirstKey(a, query + lane);
    const float dot = Dot(tiles.k + (row + i) * (d + 1), tiles.q + lane * (d + 1), d);
    const float dp = Dot(tiles.v + (row + i) * (d + 1), tiles.dout + lane * (d + 1), d);
    const Score score = ScoreOf<kCapped>(a, dot);
    const float p = visible ? expf(score.value - tiles.lse[lane]) : 0.0f;
    float* p_row = tiles.p + (row + i) * (kTile + 1);
    float* ds_row = tiles.ds + (row + i) * (kTile + 1);
    p_row[lane] = p;
    ds_row[lane] = visible ? p * (dp - tiles.delta[lane]) * score.slope : 0.0f;
    __syncwarp();
    AddWeighted(p_row, tiles.dout, d, dv[i]);
    AddWeighted(ds_row, tiles.q, d, dk[i]);
  }
}

// Grid: (tiles of keys, key-value heads, sequences).
template <typename T, bool kCapped>
__global__ void __launch_bounds__(kThreads) BackwardKeyKernel(AttentionArguments a) {
  const int rows = a.rows[blockIdx.z];
  const int key = static_cast<int>(blockIdx.x) * kTile;
  if (key >= rows) return;
  const int64_t begin = a.first_rows[blockIdx.z];
  const int d = a.head_size;
  const int kv_head = static_cast<int>(blockIdx.y);
  const int sharing = a.heads / a.kv_heads;
  const HeadRows<const T> k(static_cast<const T*>(a.k), a.strides.k, begin, kv_head, d);
  const HeadRows<const T> v(static_cast<const T*>(a.v), a.strides.v, begin, kv_head, d);

  extern __shared__ float shared[];
  KeyTiles tiles = {};
  float* free = shared;
  for (float** tile : {&tiles.k, &tiles.v, &tiles.q, &tiles.dout}) {
    *tile = free;
    free += kTile * (d + 1);
  }
  tiles.p = free;
  tiles.ds = tiles.p + kTile * (kTile + 1);
  tiles.lse = tiles.ds + kTile * (kTile + 1);
  tiles.delta = tiles.lse + kTile;

  LoadTile(k, key, rows, d, tiles.k);
  LoadTile(v, key, rows, d, tiles.v);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int row = static_cast<int>(threadIdx.x) / 32 * kRowsPerWarp;
  float dk_acc[kRowsPerWarp][kColumnsPerLane] = {};
  float dv_acc[kRowsPerWarp][kColumnsPerLane] = {};
  for (int head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
    const HeadRows<const T> q(static_cast<const T*>(a.q), a.strides.q, begin, head, d);
    const HeadRows<const T> out(static_cast<const T*>(a.out), a.strides.out, begin, head, d);
    const HeadRows<const T> dout(static_cast<const T*>(a.dout), a.strides.dout, begin, head, d);
    // Up to the last query that sees one of these keys.
    const int end = a.window == 0 ? rows : min(rows, key + kTile - 1 + a.window);
    for (int query = key; query < end; query += kTile) {
      __syncthreads();
      LoadTile(q, query, rows, d, tiles.q);
      LoadTile(dout, query, rows, d, tiles.dout);
      for (int i = row; i < row + kRowsPerWarp && query + i < rows; ++i) {
        const float delta = Delta(dout.row(query + i), out.row(query + i), d);
        if (lane == 0) {
          tiles.delta[i] = delta;
          tiles.lse[i] = a.lse[(begin + query + i) * a.strides.lse + head];
        }
      }
      __syncthreads();
      AddQueries<kCapped>(a, tiles, key, query, rows, dk_acc, dv_acc);
    }
  }
  const HeadRows<T> dk(static_cast<T*>(a.dk), a.strides.dk, begin, kv_head, d);
  const HeadRows<T> dv(static_cast<T*>(a.dv), a.strides.dv, begin, kv_head, d);
#pragma unroll
  for (int i = 0; i < kRowsPerWarp; ++i) {
    if (key + row + i >= rows) break;
    StoreRow(dk_acc[i], a.scale, d, dk.row(key + row + i));
    StoreRow(dv_acc[i], 1.0f, d, dv.row(key + row + i));
  }
}

// Strides in the order of the tables.
struct StrideList {
  int64_t of[kAttentionTensors];
};

__global__ void RaggedOffsetsKernel(const int32_t* first_rows, const int32_t* rows, int batch,
                                    StrideList strides, int32_t* tables) {
  for (int i = static_cast<int>(threadIdx.x); i <= batch; i += static_cast<int>(blockDim.x)) {
    const int64_t row = i < batch ? first_rows[i] : first_rows[batch - 1] + rows[batch - 1];
#pragma unroll
    for (int t = 0; t < kAttentionTensors; ++t) {
      tables[t * (batch + 1) + i] = static_cast<int32_t>(row * strides.of[t]);
    }
  }
}

int64_t SharedBytes(int tiles, int boxes, int head_size) {
  const int64_t floats =
      int64_t{tiles} * kTile * (head_size + 1) + int64_t{boxes} * kTile * (kTile + 1) + 2 * kTile;
  return floats * static_cast<int64_t>(sizeof(float));
}

void Launch(void (*kernel)(AttentionArguments), const AttentionArguments& arguments, int heads,
            int64_t shared_bytes, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((arguments.longest + kTile - 1) / kTile),
                  static_cast<unsigned>(heads), static_cast<unsigned>(arguments.batch));
  LaunchKernel(kernel,
               {.grid = grid, .threads = kThreads, .shared_bytes = static_cast<int>(shared_bytes)},
               stream, arguments);
}

}  // namespace

bool RowsAreAligned(const AttentionArguments& arguments) {
  const AttentionArguments& a = arguments;
  const AttentionStrides& s = a.strides;
  const auto aligned = [](const void* data, int64_t stride) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride % 8 == 0;
  };
  return aligned(a.q, s.q) && aligned(a.k, s.k) && aligned(a.v, s.v) && aligned(a.out, s.out) &&
         aligned(a.dout, s.dout) && aligned(a.dq, s.dq) && aligned(a.dk, s.dk) &&
         aligned(a.dv, s.dv);
}

namespace {

template <typename T, bool kCapped>
void LaunchForward(const AttentionArguments& arguments, cudaStream_t stream) {
  Launch(ForwardKernel<T, kCapped>, arguments, arguments.heads,
         SharedBytes(3, 1, arguments.head_size), stream);
}

template <typename T, bool kCapped>
void LaunchBackward(const AttentionArguments& arguments, cudaStream_t stream) {
  Launch(BackwardQueryKernel<T, kCapped>, arguments, arguments.heads,
         SharedBytes(4, 1, arguments.head_size), stream);
  Launch(BackwardKeyKernel<T, kCapped>, arguments, arguments.kv_heads,
         SharedBytes(4, 2, arguments.head_size), stream);
}

}  // namespace

void LaunchAttention(const AttentionArguments& arguments, DType dtype, cudaStream_t stream) {
  assert(arguments.head_size <= kOwnHeadSizeMax);
  if (dtype == DType::kFloat32) {
    arguments.cap == 0 ? LaunchForward<float, false>(arguments, stream)
                       : LaunchForward<float, true>(arguments, stream);
  } else {
    arguments.cap == 0 ? LaunchForward<__nv_bfloat16, false>(arguments, stream)
                       : LaunchForward<__nv_bfloat16, true>(arguments, stream);
  }
}

void LaunchAttentionBackward(const AttentionArguments& arguments, DType dtype,
                             cudaStream_t stream) {
  assert(arguments.head_size <= kOwnHeadSizeMax);
  if (dtype == DType::kFloat32) {
    arguments.cap == 0 ? LaunchBackward<float, false>(arguments, stream)
                       : LaunchBackward<float, true>(arguments, stream);
  } else {
    arguments.cap == 0 ? LaunchBackward<__nv_bfloat16, false>(arguments, stream)
                       : LaunchBackward<__nv_bfloat16, true>(arguments, stream);
  }
}

void LaunchRaggedOffsets(const int32_t* first_rows, const int32_t* rows, int64_t batch,
                         const AttentionStrides& strides, int32_t* tables, cudaStream_t stream) {
  const StrideList list = {{strides.q, strides.k, strides.v, strides.out, strides.lse, strides.dout,
                            strides.dq, strides.dk, strides.dv}};
  RaggedOffsetsKernel<<<1, 128, 0, stream>>>(first_rows, rows, static_cast<int>(batch), list,
                                             tables);
  LORAD_CUDA_LAUNCHED();
}

}  // namespace lorad::kernels::cuda
