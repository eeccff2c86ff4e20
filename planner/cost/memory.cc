#include "planner/cost/memory.h"

#include <algorithm>
#include <cassert>

#include "sizes/cpu_workspace.h"
#include "sizes/cuda_workspace.h"

namespace lorad::planner {
namespace {

using sizes::ArenaBytes;
using sizes::LoraSavedColumns;
using sizes::PaddedRank;

constexpr int64_t kFloat = 4;

// One allocation of the arena.
constexpr int64_t Floats(int64_t count) { return ArenaBytes(kFloat * count); }
// Weights, activations and their gradients.
constexpr int64_t Values(int64_t count, const DeviceShape& device) {
  return ArenaBytes(device.value_bytes * count);
}

int64_t OutFeatures(const ModelShape::Group& group) {
  int64_t features = 0;
  for (const ModelShape::Part& part : group.parts) features += part.out_features;
  return features;
}

bool HasBias(const ModelShape::Group& group) {
  return std::any_of(group.parts.begin(), group.parts.end(),
                     [](const ModelShape::Part& part) { return part.bias; });
}

int64_t WeightBytes(const ModelShape& model, const GroupShape& group) {
  const int64_t norms = (model.in_norm ? 2 : 0) + (model.out_norm ? 2 : 0);
  int64_t layer = norms * Floats(model.hidden) + Floats(model.q_norm) + Floats(model.k_norm);
  for (const ModelShape::Group& linear : model.groups) {
    layer += Values(OutFeatures(linear) * linear.in_features, group.device);
    if (HasBias(linear)) layer += Values(OutFeatures(linear), group.device);
  }
  const int64_t vocabulary = Values(model.vocabulary * model.hidden, group.device);
  int64_t rope = 0;
  for (const ModelShape::RopeTable& table : model.ropes) {
    rope += Floats(sizes::RopeRows(group.longest_sequence, table.border) * table.features);
  }
  return model.layers * layer + Floats(model.hidden) + rope +
         (model.tied_head ? vocabulary : 2 * vocabulary);
}

// In: q, k, v and gate, up; out: o and down.
struct Linears {
  const ModelShape::Group &qkv, &o, &gate_up, &down;
};

int64_t ActivationBytes(const ModelShape& model, const Linears& linears, const GroupShape& group) {
  const int64_t tokens = group.capacity_tokens;
  const auto values = [&](int64_t columns) { return Values(tokens * columns, group.device); };
  const int64_t hidden = values(model.hidden);
  const int64_t qkv = values(OutFeatures(linears.qkv));
  const int64_t attended = values(linears.o.in_features);
  const int64_t gate_up = values(OutFeatures(linears.gate_up));
  const int64_t gated = values(linears.down.in_features);
  const int64_t attention = qkv + attended + Floats(tokens * model.heads);
  const int64_t normed_out = model.out_norm ? hidden : 0;
  int64_t layer = 2 * hidden;                  // the blocks' inputs
  int64_t attention_scratch = qkv + attended;  // gradients
  int64_t mlp_scratch = gated;                 // likewise; those of gate and up overwrite them
  if (model.q_norm > 0)
    attention_scratch += values((model.heads + model.kv_heads) * model.head_size);
  if (group.recomputation == Recomputation::kBlocks) {
    attention_scratch += attention + normed_out;
    mlp_scratch += gate_up + normed_out;
  } else {
    layer += attention + gate_up + 2 * normed_out;
  }
  if (group.recomputation == Recomputation::kNothing) {
    layer += (model.in_norm ? 2 * hidden : 0) + gated;
    for (const ModelShape::Group* linear :
         {&linears.qkv, &linears.o, &linears.gate_up, &linears.down}) {
      layer += values(LoraSavedColumns(static_cast<int64_t>(linear->parts.size()), group.rank_max));
    }
  } else {
    mlp_scratch += gated;
  }
  const int64_t border_and_gradients = 4 * hidden;
  const int64_t loss = Floats(tokens) + hidden;
  return model.layers * layer + border_and_gradients + loss +
         std::max(attention_scratch, mlp_scratch);
}

// As the engine asks its backend for (worker/engine/model.h).
sizes::Limits LimitsOf(const ModelShape& model, const GroupShape& group) {
  sizes::Limits limits{.tokens = group.capacity_tokens,
                       .longest_segment = group.longest_sequence,
                       .hidden = model.hidden,
                       .vocabulary = model.vocabulary,
                       .rank = group.rank_max,
                       .slots = 2 * group.slots_max,
                       .heads = model.heads,
                       .kv_heads = model.kv_heads,
                       .head_size = model.head_size};
  for (const ModelShape::Group& linear : model.groups) {
    limits.features = std::max({limits.features, linear.in_features, OutFeatures(linear)});
    limits.targets_in_group =
        std::max(limits.targets_in_group, static_cast<int64_t>(linear.parts.size()));
  }
  return limits;
}

int64_t WorkspaceBytes(const ModelShape& model, const GroupShape& group) {
  const sizes::Limits limits = LimitsOf(model, group);
  const DeviceShape& device = group.device;
  switch (device.kind) {
    case DeviceKind::kCpu:
      return sizes::LayCpuWorkspace(limits, device.threads).bytes;
    case DeviceKind::kCuda:
      return sizes::LayCudaWorkspace(limits, device.value_bytes, device.multiprocessors).bytes;
  }
  assert(false);
  return 0;
}

// fn(elements of A, elements of B) for every target of one layer.
template <class Fn>
void ForEachTarget(const ModelShape& model, const AdapterShape& adapter, Fn fn) {
  for (const ModelShape::Group& group : model.groups) {
    for (const ModelShape::Part& part : group.parts) {
      if (std::find(adapter.targets.begin(), adapter.targets.end(), part.target) !=
          adapter.targets.end()) {
        fn(adapter.rank * group.in_features, part.out_features * adapter.rank);
      }
    }
  }
}

}  // namespace

int64_t AdapterParameters(const ModelShape& model, const AdapterShape& adapter) {
  int64_t parameters = 0;
  ForEachTarget(model, adapter, [&](int64_t a, int64_t b) { parameters += a + b; });
  return model.layers * parameters;
}

GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group) {
  assert(group.stages == 1 && model.groups.size() == 4);
  const Linears linears{model.groups[0], model.groups[1], model.groups[2], model.groups[3]};
  return {.weights = WeightBytes(model, group),
          .activations = ActivationBytes(model, linears, group),
          .workspace = WorkspaceBytes(model, group)};
}

SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device) {
  SlotBytes bytes;
  ForEachTarget(model, adapter, [&](int64_t a, int64_t b) {
    bytes.adapters += model.layers * (Floats(a) + Floats(b));
    bytes.optimizer += model.layers * 2 * (Floats(a) + Floats(b));
    bytes.optimizer += model.layers * (ArenaBytes(8 * a) + ArenaBytes(8 * b));
    if (device.value_bytes == kFloat) return;  // products read the masters
    for (const int64_t elements : {a, b}) {
      bytes.adapters +=
          model.layers * Values(elements / adapter.rank * PaddedRank(adapter.rank), device);
    }
  });
  if (device.kind == DeviceKind::kCpu) {
    bytes.staging = Floats(3 * AdapterParameters(model, adapter));
  }
  return bytes;
}

GroupShape EmptyShape(const DeviceShape& device) {
  GroupShape shape{.device = device};
  if (device.kind == DeviceKind::kCuda) {
    shape.recomputation = Recomputation::kNothing;
    shape.rank_max = 64;
    shape.slots_max = 32;
  }
  return shape;
}

bool Fits(int64_t bytes, int64_t budget_bytes) {
  return static_cast<double>(bytes) * (1 + kMemoryMargin) <= static_cast<double>(budget_bytes);
}

}  // namespace lorad::planner
