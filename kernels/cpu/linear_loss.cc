#include <algorithm>
#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

// First round: (loss chunk, vocabulary part), each walking its part tile by tile with a running
// maximum, the sum of exponentials and their sum of weight rows, rescaled when the maximum grows.
// Second round: rows, merging the parts in order. The product with W of a tile follows its scores
// at once, while both are in the cache.
namespace lorad::kernels::cpu {
namespace {

// The state of one vocabulary part over the rows of one loss chunk.
struct PartState {
  float* sums;   // [count, H]: sum of exp(z - max) W
  float* max;    // [count]
  double* norm;  // [count]: sum of exp(z - max)
};

int64_t PartWidth(int64_t vocabulary) {
  const int64_t tiles = (vocabulary + kVocabularyTile - 1) / kVocabularyTile;
  return (tiles + kVocabularyParts - 1) / kVocabularyParts * kVocabularyTile;
}

void GatherRows(const CpuBatch& batch, const LossChunk& chunk, const TensorView& x, float* to) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    const int64_t row = batch.loss_rows[static_cast<size_t>(chunk.first + i)].row;
    std::memcpy(to + i * x.columns, x.row(row), static_cast<size_t>(x.columns) * sizeof(float));
  }
}

// Takes the scores z [count, width] of the vocabulary from `first` on into the state; leaves exp(z
// - max) in z.
void FoldTile(const Context& context, const CpuBatch& batch, const LossChunk& chunk, int64_t first,
              int64_t width, int64_t hidden, bool gradient, float* z, const PartState& state) {
  for (int64_t i = 0; i < chunk.count; ++i) {
    float* scores = z + i * width;
    const size_t index = static_cast<size_t>(chunk.first + i);
    const int64_t target = batch.loss_rows[index].target;
    if (target >= first && target < first + width) {
      context.workspace.loss_target[index] = scores[target - first];
    }
    const float tile_max = context.loops.max(scores, width);
    // Also where the tile's maximum is not a number: the row's results turn NaN, and the row is the
    // job's own.
    if (!(tile_max <= state.max[i])) {
      const float factor = std::exp(state.max[i] - tile_max);
      state.norm[i] *= static_cast<double>(factor);
      if (gradient && factor != 1.0f) {
        context.loops.scale(state.sums + i * hidden, factor, state.sums + i * hidden, hidden);
      }
      state.max[i] = tile_max;
    }
    state.norm[i] += static_cast<double>(context.loops.exp_sum(scores, state.max[i], width));
  }
}

}  // namespace

void LinearLoss(const Context& context, const CpuBatch& batch, const TensorView& x,
                const CpuLinear& head, const TensorView& log_p, const TensorView& unit) {
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
  const int64_t capacity = workspace.limits.tokens;
  const int64_t part_width = PartWidth(vocabulary);
  const int64_t parts = (vocabulary + part_width - 1) / part_width;
  const int64_t items = static_cast<int64_t>(batch.loss_chunks.size()) * parts;

  context.pool.Run(items, [&](int64_t item, int thread) {
    const LossChunk& chunk = batch.loss_chunks[static_cast<size_t>(item / parts)];
    const int64_t part = item % parts;
    const bool gradient = chunk.train && !unit.empty();
    const int64_t begin = part * capacity + chunk.first;
    const PartState state = {.sums = workspace.loss_sums + begin * hidden,
                             .max = workspace.loss_max + begin,
                             .norm = workspace.loss_norm + begin};
    float* gathered = workspace.scratch[static_cast<size_t>(thread)];  // [count, H]
    float* z = gathered + kChunkTokens * hidden;                       // [count, tile]
    GatherRows(batch, chunk, x, gathered);
    std::fill_n(state.max, chunk.count, -std::numeric_limits<float>::infinity());
    std::fill_n(state.norm, chunk.count, 0.0);
    if (gradient) std::fill_n(state.sums, chunk.count * hidden, 0.0f);
    const int64_t part_end = std::min(vocabulary, (part + 1) * part_width);
    for (int64_t first = part * part_width; first < part_end; first += kVocabularyTile) {
      const int64_t width = std::min(kVocabularyTile, part_end - first);
      MultiplyNT(chunk.count, width, hidden, 1.0f, gathered, hidden, weight.row(first),
                 weight.row_stride, 0.0f, z, width);
      FoldTile(context, batch, chunk, first, width, hidden, gradient, z, state);
      if (gradient) {
        MultiplyNN(chunk.count, hidden, width, 1.0f, z, width, weight.row(first), weight.row_stride,
                   1.0f, state.sums, hidden);
      }
    }
  });

  const int64_t chunks = static_cast<int64_t>(batch.loss_chunks.size());
  context.pool.Run(chunks, [&](int64_t chunk_index, int) {
    const LossChunk& chunk = batch.loss_chunks[static_cast<size_t>(chunk_index)];
    for (int64_t i = chunk.first; i < chunk.first + chunk.count; ++i) {
      float max = workspace.loss_max[i];
      for (int64_t part = 1; part < parts; ++part) {
        const float other = workspace.loss_max[part * capacity + i];
        if (!(other <= max)) max = other;
      }
      double norm = 0;
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t at = part * capacity + i;
        norm +=
            workspace.loss_norm[at] * std::exp(static_cast<double>(workspace.loss_max[at] - max));
      }
      log_p.f32()[i] = static_cast<float>(static_cast<double>(workspace.loss_target[i]) -
                                          static_cast<double>(max) - std::log(norm));
      if (!chunk.train || unit.empty()) continue;
      float* gradient = unit.row(i);
      const int64_t target = batch.loss_rows[static_cast<size_t>(i)].target;
      std::memcpy(gradient, weight.row(target), static_cast<size_t>(hidden) * sizeof(float));
      for (int64_t part = 0; part < parts; ++part) {
        const int64_t at = part * capacity + i;
        const double share = std::exp(static_cast<double>(workspace.loss_max[at] - max)) / norm;
        context.loops.add_scaled(workspace.loss_sums + at * hidden, -static_cast<float>(share),
                                 gradient, hidden);
      }
    }
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
