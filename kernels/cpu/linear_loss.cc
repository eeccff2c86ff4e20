#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

// An item is a loss chunk: it walks the vocabulary tile by tile with a running maximum, the sum of
// exponentials and their sum of weight rows, rescaled when the maximum grows. The product with W of
// a tile follows its scores at once, while both are in the cache.
//
// The sum of exponentials is kept in eight float32 lanes over the whole vocabulary, as torch's
// log_softmax keeps it with AVX2. What that rounding loses is no noise but a bias, 1e-5 of the loss
// at 49152 words, and AdamW makes a hundred times more of it in the matrices: with a double in its
// place PEFT's adapters are missed by 1e-3 (tests/golden, smollm2_gsm8k_r4_qv).
namespace lorad::kernels::cpu {
namespace {

// The state of the rows of one loss chunk.
struct ChunkState {
  float* sums;   // [count, H]: sum of exp(z - max) W
  float* max;    // [count]
  float* lanes;  // [count, kLossLanes]: sums of exp(z - max), word j in lane j mod kLossLanes
};

void GatherRows(const CpuBatch& batch, const LossChunk& chunk, const TensorView& x, float* to) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    const int64_t row = batch.loss_rows[static_cast<size_t>(chunk.first + i)].row;
    std::memcpy(to + i * x.columns, x.row(row), static_cast<size_t>(x.columns) * sizeof(float));
  }
}

// The slope of the cap at a score that it made, by the loop that gives every word's: a word that is
// all of the sum then has a gradient of exactly 0.
float SlopeAt(const Context& context, float score, float cap) {
  if (cap == 0) return 1.0f;
  float lanes[kLossLanes] = {};
  float slope = score;
  context.loops.capped_exp_lanes(&slope, cap, score, lanes, 1);
  return slope;
}

void AddToLanes(const float* exponentials, int64_t width, float* lanes) {
  static_assert(kVocabularyTile % kLossLanes == 0);  // so word j of a tile is in lane j
  static_assert(kExpLanes == kLossLanes);
  int64_t first = 0;
  for (; first + kLossLanes <= width; first += kLossLanes) {
    for (int64_t lane = 0; lane < kLossLanes; ++lane) lanes[lane] += exponentials[first + lane];
  }
  for (int64_t lane = 0; first + lane < width; ++lane) lanes[lane] += exponentials[first + lane];
}

float SumOfLanes(const float* lanes) {
  static_assert(kLossLanes == 8);
  const float a = (lanes[0] + lanes[4]) + (lanes[2] + lanes[6]);
  const float b = (lanes[1] + lanes[5]) + (lanes[3] + lanes[7]);
  return a + b;
}

// Takes the scores z [count, width] of the vocabulary from `first` on into the state, capped first
// where there is a cap; leaves exp(z - max) in z, times the slope of the cap.
void FoldTile(const Context& context, const CpuBatch& batch, const LossChunk& chunk, int64_t first,
              int64_t width, int64_t hidden, float cap, bool gradient, float* z,
              const ChunkState& state) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* scores = z + i * width;
    float* lanes = state.lanes + i * kLossLanes;
    const size_t index = static_cast<size_t>(chunk.first + i);
    const int64_t target = batch.loss_rows[index].target;
    if (cap != 0) context.loops.soft_cap(scores, 1.0f, cap, width);
    if (target >= first && target < first + width) {
      context.workspace.loss_target[index] = scores[target - first];
    }
    const float tile_max = context.loops.max(scores, width);
    // Also where the tile's maximum is not a number: the row's results turn NaN, and the row is the
    // job's own.
    if (!(tile_max <= state.max[i])) {
      const float factor = std::exp(state.max[i] - tile_max);
      context.loops.scale(lanes, factor, lanes, kLossLanes);
      if (gradient && factor != 1.0f) {
        context.loops.scale(state.sums + i * hidden, factor, state.sums + i * hidden, hidden);
      }
      state.max[i] = tile_max;
    }
    if (cap == 0) {
      context.loops.exp_sum(scores, state.max[i], width);
      AddToLanes(scores, width, lanes);
    } else {
      context.loops.capped_exp_lanes(scores, cap, state.max[i], lanes, width);
    }
  }
}

// log p of the chunk's rows, and their unit gradients W[target] - sum p W, W times the slope of the
// cap.
void FinishChunk(const Context& context, const CpuBatch& batch, const LossChunk& chunk,
                 const TensorView& weight, float cap, bool gradient, const ChunkState& state,
                 const TensorView& log_p, const TensorView& unit) {
  const int64_t hidden = weight.columns;
  for (int64_t i = 0; i < chunk.count; ++i) {
    const int64_t row = chunk.first + i;
    const float norm = SumOfLanes(state.lanes + i * kLossLanes);
    const float score = context.workspace.loss_target[row];
    log_p.f32()[row] =
        static_cast<float>(static_cast<double>(score) - static_cast<double>(state.max[i]) -
                           std::log(static_cast<double>(norm)));
    if (!gradient) continue;
    const int64_t target = batch.loss_rows[static_cast<size_t>(row)].target;
    context.loops.scale(weight.row(target), SlopeAt(context, score, cap), unit.row(row), hidden);
    context.loops.add_scaled(state.sums + i * hidden, -1.0f / norm, unit.row(row), hidden);
  }
}

}  // namespace

void LinearLoss(const Context& context, const CpuBatch& batch, const TensorView& x,
                const CpuLinear& head, float cap, const TensorView& log_p, const TensorView& unit) {
  const TensorView& weight = head.weight;  // [V, H]
  const int64_t hidden = weight.columns;
  const int64_t vocabulary = weight.rows;
  const int64_t rows = static_cast<int64_t>(batch.loss_rows.size());
  if (rows == 0) return;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(log_p, 1, rows) && !head.has_bias);
  assert(hidden <= context.workspace.limits.hidden);
  assert(unit.empty() || HasShape(unit, rows, hidden));
  for (const LossRow& row : batch.loss_rows) assert(row.target >= 0 && row.target < vocabulary);
  const Workspace& workspace = context.workspace;

  const int64_t chunks = static_cast<int64_t>(batch.loss_chunks.size());
  context.pool.Run(chunks, [&](int64_t item, int thread) {
    const LossChunk& chunk = batch.loss_chunks[static_cast<size_t>(item)];
    const bool gradient = chunk.train && !unit.empty();
    const ChunkState state = {.sums = workspace.loss_sums + chunk.first * hidden,
                              .max = workspace.loss_max + chunk.first,
                              .lanes = workspace.loss_lanes + chunk.first * kLossLanes};
    float* gathered = workspace.scratch[static_cast<size_t>(thread)];  // [count, H]
    float* z = gathered + kChunkTokens * hidden;                       // [count, tile]
    GatherRows(batch, chunk, x, gathered);
    std::fill_n(state.max, chunk.count, -std::numeric_limits<float>::infinity());
    std::fill_n(state.lanes, chunk.count * kLossLanes, 0.0f);
    if (gradient) std::fill_n(state.sums, chunk.count * hidden, 0.0f);
    for (int64_t first = 0; first < vocabulary; first += kVocabularyTile) {
      const int64_t width = std::min(kVocabularyTile, vocabulary - first);
      MultiplyNT(chunk.count, width, hidden, 1.0f, gathered, hidden, weight.row(first),
                 weight.row_stride, 0.0f, z, width);
      FoldTile(context, batch, chunk, first, width, hidden, cap, gradient, z, state);
      if (gradient) {
        MultiplyNN(chunk.count, hidden, width, 1.0f, z, width, weight.row(first), weight.row_stride,
                   1.0f, state.sums, hidden);
      }
    }
    FinishChunk(context, batch, chunk, weight, cap, gradient, state, log_p, unit);
  });
}

void LossBackward(const Context& context, const CpuBatch& batch, std::span<const float> weights,
                  const TensorView& unit, const TensorView& dx) {
  const int64_t rows = static_cast<int64_t>(batch.loss_rows.size());
  assert(static_cast<int64_t>(weights.size()) == rows);
  assert(HasShape(dx, batch.tokens(), dx.columns));
  assert(rows == 0 || HasShape(unit, rows, dx.columns));
  std::vector<int64_t> loss_of_row(static_cast<size_t>(batch.tokens()), -1);
  for (const LossChunk& chunk : batch.loss_chunks) {
    for (int64_t i = chunk.first; chunk.train && i < chunk.first + chunk.count; ++i) {
      loss_of_row[static_cast<size_t>(batch.loss_rows[static_cast<size_t>(i)].row)] = i;
    }
  }
  ForRows(context, batch.tokens(), [&](int64_t row) {
    const int64_t loss = loss_of_row[static_cast<size_t>(row)];
    if (loss < 0) {
      std::memset(dx.row(row), 0, static_cast<size_t>(dx.columns) * sizeof(float));
    } else {
      context.loops.scale(unit.row(loss), weights[static_cast<size_t>(loss)], dx.row(row),
                          dx.columns);
    }
  });
}

}  // namespace lorad::kernels::cpu
