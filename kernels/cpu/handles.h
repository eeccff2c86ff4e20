// The CPU's side of the opaque handles of backend.h: plain structs of plain memory.
#pragma once

#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"

namespace lorad::kernels::cpu {

// At most kChunkTokens rows of one segment, counted from its sequence's first token: the rows of
// one work item.
struct Chunk {
  int64_t segment = 0;
  int64_t first_row = 0;
  int64_t rows = 0;
};

// The loss rows that lie in one chunk.
struct LossChunk {
  int64_t first = 0;  // index into loss_rows
  int64_t count = 0;
  bool train = false;
};

struct CpuBatch final : Batch {
  explicit CpuBatch(const BatchDescription& description);

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }

  std::vector<int32_t> ids;
  std::vector<Segment> segments;
  std::vector<LossRow> loss_rows;
  std::vector<int32_t> positions;   // [T]
  std::vector<int32_t> angle_rows;  // [T]: of the rope tables
  std::vector<Chunk> chunks;        // in row order
  std::vector<LossChunk> loss_chunks;
};

// W [O, K] row-major as the model has it, used by both products without a second layout.
struct CpuLinear final : Linear {
  TensorView weight;
  TensorView bias;  // [1, O] or empty
  bool has_bias = false;
};

struct CpuAdapterTable final : AdapterTable {
  CpuAdapterTable(int32_t slot_count, int32_t group_count)
      : slots(slot_count),
        groups(group_count),
        targets(static_cast<size_t>(slot_count) * static_cast<size_t>(group_count)),
        overflow(std::make_unique<std::atomic<bool>[]>(static_cast<size_t>(slot_count))) {}

  std::vector<LoraTarget>& at(int32_t slot, int32_t group) {
    assert(slot >= 0 && slot < slots && group >= 0 && group < groups);
    return targets[static_cast<size_t>(slot) * static_cast<size_t>(groups) +
                   static_cast<size_t>(group)];
  }
  // Of a segment; none where its adapter is off.
  std::span<const LoraTarget> Of(const Segment& segment, int32_t group) const {
    if (segment.slot < 0 || segment.mode == Mode::kReference) return {};
    return const_cast<CpuAdapterTable*>(this)->at(segment.slot, group);
  }

  const int32_t slots;
  const int32_t groups;
  std::vector<std::vector<LoraTarget>> targets;   // [slots * groups]
  std::unique_ptr<std::atomic<bool>[]> overflow;  // [slots], set by any thread
};

struct CpuOptimizer final : Optimizer {
  std::vector<OptimizerTensor> tensors;
};

inline const CpuBatch& Of(const Batch& batch) { return static_cast<const CpuBatch&>(batch); }
inline const CpuLinear& Of(const Linear& linear) { return static_cast<const CpuLinear&>(linear); }
inline CpuLinear& Of(Linear& linear) { return static_cast<CpuLinear&>(linear); }
inline const CpuAdapterTable& Of(const AdapterTable& table) {
  return static_cast<const CpuAdapterTable&>(table);
}
inline CpuAdapterTable& Of(AdapterTable& table) { return static_cast<CpuAdapterTable&>(table); }
inline const CpuOptimizer& Of(const Optimizer& optimizer) {
  return static_cast<const CpuOptimizer&>(optimizer);
}

}  // namespace lorad::kernels::cpu
