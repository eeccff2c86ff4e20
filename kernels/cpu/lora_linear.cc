#include <algorithm>
#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/philox.h"

// Both directions run in two rounds of items, each item on one thread and its products by the
// library:
//   1. (chunk, target): S, and dS in the backward, into the workspace; dropout bits are drawn here.
//   2. (chunk, column tile): the dense product and the low-rank term on top of it; in the backward
//   also
//      (slot, target, tile of A or B): the chunks' gradients one after the other.
namespace lorad::kernels::cpu {
namespace {

// One chunk's share of one target: where S, dS and the mask of its rows lie.
struct ChunkTarget {
  const Chunk* chunk;
  const Segment* segment;
  const LoraTarget* target;
  float* s;       // [rows, R]
  float* ds;      // [rows, R]
  uint8_t* bits;  // [rows, mask_row_bytes]; null where nothing is dropped

  bool train() const { return segment->mode == Mode::kTrain; }
  float keep_scale() const { return bits != nullptr ? 1.0f / (1.0f - target->dropout) : 1.0f; }
};

// All of a microbatch: those of chunk c are [begin[c], begin[c + 1]).
struct ChunkTargets {
  std::vector<ChunkTarget> all;
  std::vector<size_t> begin;

  std::span<const ChunkTarget> Of(size_t chunk) const {
    return std::span(all).subspan(begin[chunk], begin[chunk + 1] - begin[chunk]);
  }
};

ChunkTargets FindTargets(const Workspace& workspace, const CpuBatch& batch,
                         const CpuAdapterTable& table, int32_t group) {
  ChunkTargets found;
  for (const Chunk& chunk : batch.chunks) {
    found.begin.push_back(found.all.size());
    const Segment& segment = batch.segments[static_cast<size_t>(chunk.segment)];
    int64_t column = 0;
    int64_t index = 0;
    for (const LoraTarget& target : table.Of(segment, group)) {
      const int64_t offset = chunk.first_row * workspace.rank_columns + column * chunk.rows;
      const bool drops = segment.mode == Mode::kTrain && target.dropout > 0;
      uint8_t* bits = workspace.mask_bits + (index * workspace.limits.tokens + chunk.first_row) *
                                                workspace.mask_row_bytes;
      found.all.push_back({.chunk = &chunk,
                           .segment = &segment,
                           .target = &target,
                           .s = workspace.s + offset,
                           .ds = workspace.ds + offset,
                           .bits = drops ? bits : nullptr});
      column += target.rank;
      ++index;
    }
    assert(column <= workspace.rank_columns && index <= workspace.limits.targets_in_group);
  }
  found.begin.push_back(found.all.size());
  return found;
}

void DrawMask(const Context& context, const CpuBatch& batch, const ChunkTarget& item,
              int64_t features) {
  const DropoutKey& key = item.segment->dropout;
  const LoraTarget& target = *item.target;
  for (int64_t row = 0; row < item.chunk->rows; ++row) {
    const size_t batch_row = static_cast<size_t>(item.chunk->first_row + row);
    const uint32_t counter[4] = {
        DropoutWord(static_cast<uint32_t>(target.layer), static_cast<uint32_t>(target.target), 0),
        static_cast<uint32_t>(batch.positions[batch_row]), key.sequence, key.step};
    context.loops.dropout_bits(key.seed, counter, DropoutThreshold(target.dropout), 0,
                               (features + kDropoutLanes - 1) / kDropoutLanes,
                               item.bits + row * context.workspace.mask_row_bytes);
  }
}

// Ranks below this make matrices so narrow that the library fills its registers only with their
// transposes.
constexpr int64_t kThinRank = 32;

// y [columns, rows] = x [rows, columns]^T, both dense.
void Transpose(const float* x, int64_t rows, int64_t columns, float* y) {
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      y[column * rows + row] = x[row * columns + column];
    }
  }
}

// S = s (D * x) A^T. Uses the place of dS as scratch.
void ProjectDown(const Context& context, const CpuBatch& batch, const ChunkTarget& item,
                 const TensorView& x, float* scratch) {
  const int64_t features = x.columns;
  const int64_t rows = item.chunk->rows;
  const LoraTarget& target = *item.target;
  const float* input = x.row(item.chunk->first_row);
  int64_t stride = x.row_stride;
  if (item.bits != nullptr) {
    DrawMask(context, batch, item, features);
    for (int64_t row = 0; row < rows; ++row) {
      context.loops.select(input + row * stride, item.bits + row * context.workspace.mask_row_bytes,
                           scratch + row * features, features);
    }
    input = scratch;
    stride = features;
  }
  const float scale = target.scale * item.keep_scale();
  if (target.rank < kThinRank) {
    MultiplyNT(target.rank, rows, features, scale, target.a, features, input, stride, 0.0f, item.ds,
               rows);
    Transpose(item.ds, target.rank, rows, item.s);
  } else {
    MultiplyNT(rows, target.rank, features, scale, input, stride, target.a, features, 0.0f, item.s,
               target.rank);
  }
}

// dS = s dy[:, o] B.
void ProjectGradient(const ChunkTarget& item, const TensorView& dy, float* scratch) {
  const LoraTarget& target = *item.target;
  const int64_t rows = item.chunk->rows;
  const float* gradient = dy.row(item.chunk->first_row) + target.first_output;
  if (target.rank < kThinRank) {
    float* b = scratch;                                  // [R, O]
    float* ds = scratch + target.rank * target.outputs;  // [R, rows]
    Transpose(target.b, target.outputs, target.rank, b);
    MultiplyNT(target.rank, rows, target.outputs, target.scale, b, target.outputs, gradient,
               dy.row_stride, 0.0f, ds, rows);
    Transpose(ds, target.rank, rows, item.ds);
  } else {
    MultiplyNN(rows, target.rank, target.outputs, target.scale, gradient, dy.row_stride, target.b,
               target.rank, 0.0f, item.ds, target.rank);
  }
}

// The columns of a tile that a target covers.
struct Range {
  int64_t first;
  int64_t end;
};

Range Overlap(const LoraTarget& target, int64_t first, int64_t end) {
  return {std::max(first, target.first_output),
          std::min(end, target.first_output + target.outputs)};
}

// y of one chunk and the columns [first, end).
void ForwardTile(const Chunk& chunk, std::span<const ChunkTarget> targets, const CpuLinear& linear,
                 const TensorView& x, const TensorView& residual, const TensorView& y,
                 int64_t first, int64_t end) {
  const int64_t features = linear.weight.columns;
  float* out = y.row(chunk.first_row) + first;
  const size_t row_bytes = static_cast<size_t>(end - first) * sizeof(float);
  if (!residual.empty() && residual.data != y.data) {
    for (int64_t row = 0; row < chunk.rows; ++row) {
      std::memcpy(out + row * y.row_stride, residual.row(chunk.first_row + row) + first, row_bytes);
    }
  }
  if (linear.has_bias) {
    const float* bias = linear.bias.f32() + first;
    for (int64_t row = 0; row < chunk.rows; ++row) {
      float* to = out + row * y.row_stride;
      if (residual.empty()) {
        std::memcpy(to, bias, row_bytes);
      } else {
        for (int64_t i = 0; i < end - first; ++i) to[i] += bias[i];
      }
    }
  }
  const float beta = linear.has_bias || !residual.empty() ? 1.0f : 0.0f;
  MultiplyNT(chunk.rows, end - first, features, 1.0f, x.row(chunk.first_row), x.row_stride,
             linear.weight.row(first), linear.weight.row_stride, beta, out, y.row_stride);
  for (const ChunkTarget& item : targets) {
    const LoraTarget& target = *item.target;
    const Range range = Overlap(target, first, end);
    if (range.first >= range.end) continue;
    MultiplyNT(chunk.rows, range.end - range.first, target.rank, 1.0f, item.s, target.rank,
               target.b + (range.first - target.first_output) * target.rank, target.rank, 1.0f,
               y.row(chunk.first_row) + range.first, y.row_stride);
  }
}

// dx of one chunk and the columns [first, end).
void InputGradientTile(const Context& context, const Chunk& chunk,
                       std::span<const ChunkTarget> targets, const CpuLinear& linear,
                       const TensorView& dy, const TensorView& dx, int64_t first, int64_t end,
                       float* scratch) {
  const int64_t width = end - first;
  const int64_t features = linear.weight.columns;
  float* out = dx.row(chunk.first_row) + first;
  MultiplyNN(chunk.rows, width, linear.weight.rows, 1.0f, dy.row(chunk.first_row), dy.row_stride,
             linear.weight.f32() + first, linear.weight.row_stride, 0.0f, out, dx.row_stride);
  for (const ChunkTarget& item : targets) {
    const LoraTarget& target = *item.target;
    if (item.bits == nullptr) {
      MultiplyNN(chunk.rows, width, target.rank, 1.0f, item.ds, target.rank, target.a + first,
                 features, 1.0f, out, dx.row_stride);
      continue;
    }
    MultiplyNN(chunk.rows, width, target.rank, 1.0f, item.ds, target.rank, target.a + first,
               features, 0.0f, scratch, width);
    for (int64_t row = 0; row < chunk.rows; ++row) {
      const uint8_t* bits =
          item.bits + row * context.workspace.mask_row_bytes + first / kDropoutLanes;
      context.loops.select_add(scratch + row * width, bits, item.keep_scale(),
                               out + row * dx.row_stride, width);
    }
  }
}

// Columns [first, end) of da of one target: += dS^T (D * x), chunk by chunk.
bool AddGradientA(const Context& context, const ChunkTarget& item, const TensorView& x,
                  int64_t first, int64_t end, float* scratch) {
  const LoraTarget& target = *item.target;
  const int64_t width = end - first;
  const int64_t rows = item.chunk->rows;
  float* gradient = scratch;                        // [R, width]
  float* selected = scratch + target.rank * width;  // [rows, width]
  const float* input = x.row(item.chunk->first_row) + first;
  int64_t stride = x.row_stride;
  if (item.bits != nullptr) {
    for (int64_t row = 0; row < rows; ++row) {
      context.loops.select(
          input + row * stride,
          item.bits + row * context.workspace.mask_row_bytes + first / kDropoutLanes,
          selected + row * width, width);
    }
    input = selected;
    stride = width;
  }
  MultiplyTN(target.rank, width, rows, item.keep_scale(), item.ds, target.rank, input, stride, 0.0f,
             gradient, width);
  bool finite = true;
  for (int64_t rank = 0; rank < target.rank; ++rank) {
    finite &= context.loops.add_fixed(gradient + rank * width, target.da + rank * x.columns + first,
                                      width);
  }
  return finite;
}

// Rows [first, end) of db of one target: += dy^T S, chunk by chunk.
bool AddGradientB(const Context& context, const ChunkTarget& item, const TensorView& dy,
                  int64_t first, int64_t end, float* scratch) {
  const LoraTarget& target = *item.target;
  const int64_t width = end - first;
  const int64_t rows = item.chunk->rows;
  const float* dy_tile = dy.row(item.chunk->first_row) + target.first_output + first;
  float* gradient = scratch;  // [width, R]
  if (target.rank < kThinRank) {
    float* transposed = scratch + target.rank * width;  // [R, width]
    MultiplyTN(target.rank, width, rows, 1.0f, item.s, target.rank, dy_tile, dy.row_stride, 0.0f,
               transposed, width);
    Transpose(transposed, target.rank, width, gradient);
  } else {
    MultiplyTN(width, target.rank, rows, 1.0f, dy_tile, dy.row_stride, item.s, target.rank, 0.0f,
               gradient, target.rank);
  }
  return context.loops.add_fixed(gradient, target.db + first * target.rank, width * target.rank);
}

// An item of the backward's second round.
struct GradientItem {
  enum Kind { kInput, kA, kB } kind;
  size_t chunk;              // kInput
  const LoraTarget* target;  // kA, kB: every chunk of this target
  int32_t slot;              // kA, kB
  int64_t first;
  int64_t end;
};

void AddTiles(GradientItem item, int64_t columns, std::vector<GradientItem>& items) {
  const int64_t width = TileWidth(columns);
  for (int64_t first = 0; first < columns; first += width) {
    item.first = first;
    item.end = std::min(columns, first + width);
    items.push_back(item);
  }
}

std::vector<GradientItem> PlanGradients(const CpuBatch& batch, CpuAdapterTable& table,
                                        int32_t group, int64_t features, bool input_gradient) {
  std::vector<GradientItem> items;
  const int64_t width = TileWidth(features);
  // The chunks of a tile follow each other: its weights come from memory once.
  for (int64_t first = 0; input_gradient && first < features; first += width) {
    for (size_t chunk = 0; chunk < batch.chunks.size(); ++chunk) {
      items.push_back({.kind = GradientItem::kInput,
                       .chunk = chunk,
                       .target = nullptr,
                       .slot = -1,
                       .first = first,
                       .end = std::min(features, first + width)});
    }
  }
  std::vector<bool> trains(static_cast<size_t>(table.slots), false);
  for (const Segment& segment : batch.segments) {
    if (segment.mode == Mode::kTrain && segment.slot >= 0) {
      trains[static_cast<size_t>(segment.slot)] = true;
    }
  }
  for (int32_t slot = 0; slot < table.slots; ++slot) {
    if (!trains[static_cast<size_t>(slot)]) continue;
    for (const LoraTarget& target : table.at(slot, group)) {
      assert(target.da != nullptr && target.db != nullptr);
      AddTiles({.kind = GradientItem::kA,
                .chunk = 0,
                .target = &target,
                .slot = slot,
                .first = 0,
                .end = 0},
               features, items);
      AddTiles({.kind = GradientItem::kB,
                .chunk = 0,
                .target = &target,
                .slot = slot,
                .first = 0,
                .end = 0},
               target.outputs, items);
    }
  }
  return items;
}

void CheckShapes(const CpuBatch& batch, const CpuLinear& linear, const TensorView& x,
                 const TensorView& y) {
  assert(HasShape(x, batch.tokens(), linear.weight.columns));
  assert(HasShape(y, batch.tokens(), linear.weight.rows));
}

}  // namespace

void LoraLinear(const Context& context, const CpuBatch& batch, const CpuLinear& linear,
                const CpuAdapterTable& table, int32_t group, const TensorView& x,
                const TensorView& residual, const TensorView& y) {
  CheckShapes(batch, linear, x, y);
  assert(residual.empty() || HasShape(residual, batch.tokens(), linear.weight.rows));
  const ChunkTargets targets = FindTargets(context.workspace, batch, table, group);
  context.pool.Run(static_cast<int64_t>(targets.all.size()), [&](int64_t index, int thread) {
    ProjectDown(context, batch, targets.all[static_cast<size_t>(index)], x,
                context.workspace.scratch[static_cast<size_t>(thread)]);
  });
  const int64_t outputs = linear.weight.rows;
  const int64_t chunks = static_cast<int64_t>(batch.chunks.size());
  const int64_t width = TileWidth(outputs);
  // The chunks of a tile follow each other: its weights come from memory once.
  context.pool.Run(chunks * Tiles(outputs), [&](int64_t index, int) {
    const size_t chunk = static_cast<size_t>(index % chunks);
    const int64_t first = index / chunks * width;
    ForwardTile(batch.chunks[chunk], targets.Of(chunk), linear, x, residual, y, first,
                std::min(outputs, first + width));
  });
}

void LoraLinearBackward(const Context& context, const CpuBatch& batch, const CpuLinear& linear,
                        CpuAdapterTable& table, int32_t group, const TensorView& x,
                        const TensorView& dy, const TensorView& dx) {
  CheckShapes(batch, linear, x, dy);
  assert(dx.empty() || HasShape(dx, batch.tokens(), linear.weight.columns));
  const ChunkTargets targets = FindTargets(context.workspace, batch, table, group);
  context.pool.Run(static_cast<int64_t>(targets.all.size()), [&](int64_t index, int thread) {
    const ChunkTarget& item = targets.all[static_cast<size_t>(index)];
    float* scratch = context.workspace.scratch[static_cast<size_t>(thread)];
    if (item.train()) ProjectDown(context, batch, item, x, scratch);
    ProjectGradient(item, dy, scratch);
  });

  const std::vector<GradientItem> items =
      PlanGradients(batch, table, group, linear.weight.columns, !dx.empty());
  context.pool.Run(static_cast<int64_t>(items.size()), [&](int64_t index, int thread) {
    const GradientItem& item = items[static_cast<size_t>(index)];
    float* scratch = context.workspace.scratch[static_cast<size_t>(thread)];
    if (item.kind == GradientItem::kInput) {
      InputGradientTile(context, batch.chunks[item.chunk], targets.Of(item.chunk), linear, dy, dx,
                        item.first, item.end, scratch);
      return;
    }
    bool finite = true;
    for (const ChunkTarget& part : targets.all) {
      if (part.target != item.target || !part.train()) continue;
      finite &= item.kind == GradientItem::kA
                    ? AddGradientA(context, part, x, item.first, item.end, scratch)
                    : AddGradientB(context, part, dy, item.first, item.end, scratch);
    }
    if (!finite) table.overflow[static_cast<size_t>(item.slot)].store(true);
  });
}

}  // namespace lorad::kernels::cpu
