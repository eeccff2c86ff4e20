// Attention's backward for compute capability 9.0, bf16, head sizes 64 and 128, in place of cuDNN's
// deterministic one. With the notation of kernels.h, for a query head and one sequence:
//   delta_m = sum over d of dout_md out_md
//   p_mn    = exp2(scale log2(e) q_m k_n - log2(e) lse_m), 0 for keys n that query m does not see
//   ds_mn   = p_mn (dout_m v_n - delta_m)
//   dv_n = sum over m of p_mn dout_m,  dk_n = scale sum over m of ds_mn q_m,
//   dq_m = scale sum over n of ds_mn k_n
// with p and ds rounded to bf16 where they are multiplied, sums in fp32. dq and dk are turned back
// (RopeBackward) where they are written, if that is wanted.
//
// Three launches. The first makes delta and log2(e) lse. The second makes dk and dv, the third dq:
// p and ds are made in both, seven products where five would do, but nothing of size S^2 is kept
// and nothing is added in memory, so the order of all sums is fixed. The third waits for the first
// alone: its blocks start where those of the second leave room.
//
// An item of work is 128 rows of one sequence, counted from its own first row, 64 for each of two
// warpgroups, whose results stay in registers: keys and values of a key-value head (queries of all
// its query heads pass by, head after head), or queries of a query head (keys and values pass by).
// The scores are made with the item's rows as rows of the warpgroup's tile, so their place in
// registers is that of the next product's operand A: neither p nor ds ever leaves the registers.
// Blocks stay and take items, the heaviest first, as they become free; which block has an item
// changes no bit. A warp fills a ring of tiles in shared memory ahead, over the borders of items.
// The warpgroups start products in turns, so that one multiplies while the other takes
// exponentials. Of a window's tiles those pass by that a row of the item sees; kernels without a
// window are of their own, for the masks at its far end cost. Queries that are held are copied to
// registers, with their gradients: an operand A of 64 rows in shared memory takes as long to read
// as the product itself.
//
// Order of sums: dv, dk: query heads in order, in each the queries ascending; dq: keys ascending;
// steps of 64 in which the matrix units sum 16 at a time. A function of the row's place in its
// sequence alone. Rows after the sequence's end that a tile holds (another's, perhaps NaN) are
// replaced by zeros where they would be summed over, and cut off by selects elsewhere.
// Dao 2023 (arXiv 2307.08691), section 3.1; Shah et al. 2024 (arXiv 2407.08608), section 3.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/attention/calls.h"
#include "kernels/cuda/attention/kernels.h"
#include "kernels/cuda/device/tensor_map.h"
#include "kernels/cuda/rowwise/rope.h"
#include "sizes/cuda_attention.h"

namespace lorad::kernels::cuda {

using sizes::BackwardScratchFloats;
using sizes::kBackwardBox;

inline constexpr int kBackwardRows = 128;  // of an item

inline constexpr int kPairFloats = 4;

struct AttentionBackwardArguments {
  TensorMap q, k, v, dout;     // boxes 64 x 64
  const AttentionUnit* units;  // [unit_count], device
  int32_t* taken;              // items that blocks have taken; zero before
  // [heads, scratch_stride / 2, kPairFloats]: of two rows of a sequence, r and r + 1 with r even,
  // log2(e) lse of both, then delta of both, at place (scratch_row of its units + r) / 2.
  const float* pairs;
  int64_t scratch_stride;
  void* dq;
  void* dk;
  void* dv;
  int64_t dq_stride, dk_stride, dv_stride;
  int32_t unit_count;
  int32_t heads, kv_heads;
  float scale;
  int32_t window;  // read where Shape::kWindow
  // Of RopeTables; all strides here are of 64 bits.
  const int32_t* positions;
  const float* angles;
  int64_t angle_stride;
};

struct AttentionBackwardCall {
  AttentionArguments arguments;  // batch, longest and the sequences are not read
  int64_t tokens = 0;
  const AttentionUnit* key_units = nullptr;    // heaviest first as keys
  const AttentionUnit* query_units = nullptr;  // heaviest first as queries
  int64_t unit_count = 0;
  float* scratch = nullptr;    // [BackwardScratchFloats], aligned to 16 bytes
  int64_t scratch_stride = 0;  // ScratchStride of AttentionUnits::scratch_rows
  int multiprocessors = 0;
  // By which dq and dk are turned back, if it is not empty. Rows of angles begin at multiples of 8
  // bytes.
  RopeTables rope;
};

// What LaunchAttentionBackwardHopper takes: head sizes, no cap, and rows that begin at multiples of
// 16 bytes.
bool HopperBackwardTakes(const AttentionArguments& arguments);

void LaunchAttentionBackwardHopper(const AttentionBackwardCall& call, cudaStream_t stream);

}  // namespace lorad::kernels::cuda
