#include "planner/cost/memory.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "sizes/bytes_text.h"
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

// Blocks of a stage, by kind: attention and MLP in turn.
struct Blocks {
  int64_t attention = 0;
  int64_t mlp = 0;
};

Blocks BlocksOf(const StageRange& range) {
  const int64_t attention = (range.end_block + 1) / 2 - (range.first_block + 1) / 2;
  return {.attention = attention, .mlp = range.end_block - range.first_block - attention};
}

bool HasHead(const ModelShape& model, const StageRange& range) {
  return range.has_head(2 * model.layers);
}

// In: q, k, v and gate, up; out: o and down.
struct Linears {
  const ModelShape::Group &qkv, &o, &gate_up, &down;
};

Linears LinearsOf(const ModelShape& model) {
  assert(model.groups.size() == 4);
  return {model.groups[0], model.groups[1], model.groups[2], model.groups[3]};
}

int64_t WeightBytes(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  const auto linear = [&](const ModelShape::Group& of) {
    return Values(OutFeatures(of) * of.in_features, group.device) +
           (HasBias(of) ? Values(OutFeatures(of), group.device) : 0);
  };
  const int64_t norms = ((model.in_norm ? 1 : 0) + (model.out_norm ? 1 : 0)) * Floats(model.hidden);
  const Linears linears = LinearsOf(model);
  const int64_t attention =
      norms + Floats(model.q_norm) + Floats(model.k_norm) + linear(linears.qkv) + linear(linears.o);
  const int64_t mlp = norms + linear(linears.gate_up) + linear(linears.down);
  int64_t rope = 0;
  for (const ModelShape::RopeTable& table : model.ropes) {
    rope += Floats(sizes::RopeRows(group.longest_sequence, table.border) * table.features);
  }
  const int64_t vocabulary = Values(model.vocabulary * model.hidden, group.device);
  const int64_t embedding = range.has_embedding() ? vocabulary : 0;
  const bool shared = model.tied_head && range.has_embedding();
  const int64_t head = HasHead(model, range) ? Floats(model.hidden) + (shared ? 0 : vocabulary) : 0;
  const Blocks blocks = BlocksOf(range);
  return blocks.attention * attention + blocks.mlp * mlp + rope + embedding + head;
}

// What one block of each kind keeps of a microbatch, and needs while it runs.
struct BlockBytes {
  int64_t attention = 0;
  int64_t mlp = 0;
  int64_t attention_scratch = 0;
  int64_t mlp_scratch = 0;
};

BlockBytes BytesOfBlocks(const ModelShape& model, const GroupShape& group) {
  const Linears linears = LinearsOf(model);
  const int64_t tokens = group.capacity_tokens;
  const auto values = [&](int64_t columns) { return Values(tokens * columns, group.device); };
  const auto saved = [&](const ModelShape::Group& linear) {
    return values(LoraSavedColumns(static_cast<int64_t>(linear.parts.size()), group.rank_max));
  };
  const int64_t hidden = values(model.hidden);
  const int64_t qkv = values(OutFeatures(linears.qkv));
  const int64_t attended = values(linears.o.in_features);
  const int64_t gate_up = values(OutFeatures(linears.gate_up));
  const int64_t gated = values(linears.down.in_features);
  const int64_t normed_out = model.out_norm ? hidden : 0;
  const int64_t attention = qkv + attended + Floats(tokens * model.heads) + normed_out;
  const int64_t mlp = gate_up + normed_out;
  BlockBytes bytes{.attention = hidden,  // the block's input
                   .mlp = hidden,
                   .attention_scratch = qkv + attended,  // gradients
                   .mlp_scratch = gated};  // likewise; those of gate and up overwrite them
  if (model.q_norm > 0) {
    bytes.attention_scratch += values((model.heads + model.kv_heads) * model.head_size);
  }
  const bool computes_blocks = group.recomputation == Recomputation::kBlocks;
  (computes_blocks ? bytes.attention_scratch : bytes.attention) += attention;
  (computes_blocks ? bytes.mlp_scratch : bytes.mlp) += mlp;
  if (group.recomputation == Recomputation::kNothing) {
    const int64_t normed_in = model.in_norm ? hidden : 0;
    bytes.attention += normed_in + saved(linears.qkv) + saved(linears.o);
    bytes.mlp += normed_in + gated + saved(linears.gate_up) + saved(linears.down);
  } else {
    bytes.mlp_scratch += gated;
  }
  return bytes;
}

int64_t ActivationBytes(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  const Blocks blocks = BlocksOf(range);
  const BlockBytes bytes = BytesOfBlocks(model, group);
  const int64_t hidden = Values(group.capacity_tokens * model.hidden, group.device);
  const int64_t in_flight = group.in_flight;
  const int64_t kept = blocks.attention * bytes.attention + blocks.mlp * bytes.mlp;
  const int64_t norm_and_gradients = 3 * hidden;
  const int64_t scratch = std::max(blocks.attention > 0 ? bytes.attention_scratch : 0,
                                   blocks.mlp > 0 ? bytes.mlp_scratch : 0);
  if (!HasHead(model, range)) return in_flight * kept + hidden + norm_and_gradients + scratch;
  const int64_t logits = Floats(sizes::LogitFloats(group.capacity_tokens, model.vocabulary));
  // The border and the unit gradient are kept, log p is not.
  const int64_t loss = Floats(group.capacity_tokens) + in_flight * 2 * hidden;
  return in_flight * kept + norm_and_gradients + loss + std::max(scratch, logits);
}

int64_t TransferBytes(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  const int64_t neighbours = (range.has_embedding() ? 0 : 1) + (HasHead(model, range) ? 0 : 1);
  // On a GPU what comes lands in memory of its own first, which the neighbour may write.
  const int64_t tensors = group.device.kind == DeviceKind::kCuda ? 3 : 2;
  return neighbours * tensors * Values(group.capacity_tokens * model.hidden, group.device);
}

// As the engine asks its backend for (worker/engine/model.h).
sizes::Limits LimitsOf(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  sizes::Limits limits{.tokens = group.capacity_tokens,
                       .longest_segment = group.longest_sequence,
                       .hidden = model.hidden,
                       .vocabulary = HasHead(model, range) ? model.vocabulary : 0,
                       .rank = group.rank_max,
                       .slots = 2 * group.slots_max};
  const auto add = [&limits](const ModelShape::Group& linear) {
    limits.features = std::max({limits.features, linear.in_features, OutFeatures(linear)});
    limits.targets_in_group =
        std::max(limits.targets_in_group, static_cast<int64_t>(linear.parts.size()));
  };
  const Linears linears = LinearsOf(model);
  const Blocks blocks = BlocksOf(range);
  if (blocks.attention > 0) {
    limits.heads = model.heads;
    limits.kv_heads = model.kv_heads;
    limits.head_size = model.head_size;
    add(linears.qkv);
    add(linears.o);
  }
  if (blocks.mlp > 0) {
    add(linears.gate_up);
    add(linears.down);
  }
  return limits;
}

int64_t WorkspaceBytes(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  const sizes::Limits limits = LimitsOf(model, group, range);
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

// The matrices of a part of an adapter in each of some layers.
struct Matrices {
  int64_t layers = 0;
  int64_t rank = 0;
  int64_t a = 0, b = 0;  // elements
};

// fn(Matrices) for every part of the adapter that a stage has: of one that some layers alone have,
// as many as could lie there. No product of the model has its name: not for it.
template <class Fn>
void ForEachPart(const ModelShape& model, const AdapterShape& adapter, const StageRange& range,
                 Fn fn) {
  const Blocks blocks = BlocksOf(range);
  for (size_t i = 0; i < model.groups.size(); ++i) {
    const ModelShape::Group& group = model.groups[i];
    const int64_t layers = i < 2 ? blocks.attention : blocks.mlp;
    for (const ModelShape::Part& product : group.parts) {
      for (const AdapterShape::Part& part : adapter.parts) {
        if (part.target != product.target) continue;
        fn(Matrices{.layers = part.layers > 0 ? std::min(part.layers, layers) : layers,
                    .rank = part.rank,
                    .a = part.rank * group.in_features,
                    .b = product.out_features * part.rank});
      }
    }
  }
}

int64_t ParametersOn(const ModelShape& model, const AdapterShape& adapter,
                     const StageRange& range) {
  int64_t parameters = 0;
  ForEachPart(model, adapter, range,
              [&](const Matrices& part) { parameters += part.layers * (part.a + part.b); });
  return parameters;
}

}  // namespace

StageRange WholeModel(const ModelShape& model) {
  return {0, static_cast<int32_t>(2 * model.layers)};
}

int64_t AdapterParameters(const ModelShape& model, const AdapterShape& adapter) {
  return ParametersOn(model, adapter, WholeModel(model));
}

GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group) {
  return BytesOfGroup(model, group, WholeModel(model));
}

GroupBytes BytesOfGroup(const ModelShape& model, const GroupShape& group, const StageRange& range) {
  return {.weights = WeightBytes(model, group, range),
          .activations = ActivationBytes(model, group, range),
          .transfers = TransferBytes(model, group, range),
          .workspace = WorkspaceBytes(model, group, range)};
}

int64_t BytesOfNccl(int borders) {
  constexpr int64_t kMiB = int64_t{1} << 20;
  return borders == 0 ? 0 : 410 * kMiB + borders * 2 * (614 * kMiB);
}

SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device) {
  return BytesOfSlot(model, adapter, device, WholeModel(model));
}

SlotBytes BytesOfSlot(const ModelShape& model, const AdapterShape& adapter,
                      const DeviceShape& device, const StageRange& range) {
  SlotBytes bytes;
  ForEachPart(model, adapter, range, [&](const Matrices& part) {
    for (const int64_t elements : {part.a, part.b}) {
      bytes.adapters += part.layers * Floats(elements);
      if (adapter.trains) {
        bytes.optimizer += part.layers * (2 * Floats(elements) + ArenaBytes(8 * elements));
      }
      if (device.value_bytes == kFloat) continue;  // products read the masters
      bytes.adapters += part.layers * Values(elements / part.rank * PaddedRank(part.rank), device);
    }
  });
  if (device.kind == DeviceKind::kCpu && adapter.trains) {
    bytes.staging = Floats(3 * ParametersOn(model, adapter, range));
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

std::string BudgetText(int64_t budget_bytes, int64_t bytes) {
  const bool is_margin = bytes <= budget_bytes && !Fits(bytes, budget_bytes);
  return absl::StrCat(
      sizes::ThereText(budget_bytes),
      is_margin ? absl::StrCat(", of which ", 100 * kMemoryMargin, " % are kept free") : "");
}

}  // namespace lorad::planner
