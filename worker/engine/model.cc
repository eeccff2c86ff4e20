#include "worker/engine/model.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace lorad::worker {
namespace {

using kernels::TensorView;
using storage::AttentionSpec;

}  // namespace

Model::Model(kernels::Backend* backend, const Weights& weights, GroupShape shape,
             kernels::Arena& arena)
    : backend_(backend), weights_(weights), shape_(shape) {
  assert(shape.longest_sequence >= 1 && shape.longest_sequence <= shape.capacity_tokens);
  assert(shape.in_flight >= 1 && shape.in_flight <= sizes::kInFlightMax);
  LayBlocks(arena);
  LayActivations(arena);
  LayScratch(arena);
  backend_->ReserveWorkspace(BackendLimits(), arena);
  if (!arena.counting()) FillRopeTables();
}

int64_t Model::CountBytes(kernels::Backend* backend, const storage::ModelDescription& description,
                          StageRange range, GroupShape shape) {
  kernels::Arena counting(backend->device());
  const Weights weights(backend, description, range, counting);
  const Model model(backend, weights, shape, counting);
  return counting.bytes_max();
}

int64_t Model::LandingBytes(const kernels::Backend& backend,
                            const storage::ModelDescription& description, StageRange range,
                            GroupShape shape) {
  if (backend.device() == kernels::Device::kCpu) return 0;
  const auto blocks = static_cast<int64_t>(description.blocks.size());
  const int64_t neighbours = (range.has_embedding() ? 0 : 1) + (range.has_head(blocks) ? 0 : 1);
  return neighbours * kernels::ArenaBytes(shape.capacity_tokens * description.hidden *
                                          kernels::BytesOf(backend.activation_dtype()));
}

int64_t Model::targets() const {
  int64_t targets = 0;
  for (const BlockState& state : blocks_) {
    targets += static_cast<int64_t>(state.block->in.parts.size() + state.block->out.parts.size());
  }
  return targets;
}

int64_t Model::FirstAngle(int64_t rows) const {
  const int64_t border = storage::LongRopeBorder(description());
  return border > 0 && rows > border ? shape_.longest_sequence : 0;
}

kernels::HeadAngles Model::RopeTable(const AttentionSpec& spec, kernels::Arena& arena) {
  if (spec.rope.inverse_frequencies.empty()) return {};
  for (const RopeState& state : ropes_) {
    if (*state.rope == spec.rope) return {state.table, spec.head_size};
  }
  const int64_t rows =
      sizes::RopeRows(shape_.longest_sequence, storage::LongRopeBorder(description()));
  const auto features = 2 * static_cast<int64_t>(spec.rope.inverse_frequencies.size());
  ropes_.push_back({&spec.rope, arena.Matrix(rows, features)});
  return {ropes_.back().table, spec.head_size};
}

void Model::ExchangeInput(size_t place, TensorView& memory) {
  assert(!has_embedding());
  std::swap(blocks_.front().kept[place].x, memory);
}

void Model::ExchangeOutput(TensorView& memory) {
  assert(!has_head());
  std::swap(borders_.front(), memory);
}

void Model::ExchangeGradient(TensorView& memory) { std::swap(dx_, memory); }

void Model::FillRopeTables() {
  const int64_t longest = shape_.longest_sequence;
  for (const RopeState& state : ropes_) {
    const storage::RopeSpec& rope = *state.rope;
    const auto factor = static_cast<float>(rope.factor);
    backend_->FillRope(rope.inverse_frequencies, factor, state.table.Rows(0, longest));
    if (state.table.rows == longest) continue;
    const bool other = !rope.long_frequencies.empty();
    backend_->FillRope(other ? rope.long_frequencies : rope.inverse_frequencies, factor,
                       state.table.Rows(longest, longest));
  }
}

void Model::LayBlocks(kernels::Arena& arena) {
  for (const storage::Block& block : description().blocks) {
    if (std::holds_alternative<AttentionSpec>(block.mixer)) RopeTable(Attention(block), arena);
  }
  for (int32_t i = range().first_block; i < range().end_block; ++i) {
    BlockState& state = blocks_.emplace_back();
    state.block = &description().blocks[i];
    state.index = i;
    state.attention = std::holds_alternative<AttentionSpec>(state.block->mixer);
    state.weights = &weights_.blocks()[static_cast<size_t>(i - range().first_block)];
    if (state.attention) state.angles = RopeTable(Attention(*state.block), arena);
  }
}

TensorView Model::Activation(int64_t columns, kernels::Arena& arena) const {
  return arena.Matrix(shape_.capacity_tokens, columns, backend_->activation_dtype());
}

void Model::LayBlock(const BlockState& state, Kept& kept, kernels::Arena& arena) const {
  kept.mix = Activation(state.block->in.out_features(), arena);
  if (state.block->out_norm) kept.o = Activation(description().hidden, arena);
  if (!state.attention) return;
  kept.y = Activation(state.block->out.in_features, arena);
  kept.lse = arena.Matrix(shape_.capacity_tokens, Attention(*state.block).heads);
}

void Model::LayPlace(size_t place, kernels::Arena& arena) {
  const int64_t hidden = description().hidden;
  const auto saved = [&](const storage::LinearGroup& group) {
    const auto targets = static_cast<int64_t>(group.parts.size());
    return Activation(kernels::LoraSavedColumns(targets, shape_.rank_max), arena);
  };
  const bool keeps_all = shape_.recomputation == Recomputation::kNothing;
  for (BlockState& state : blocks_) {
    Kept& kept = state.kept[place];
    kept.x = Activation(hidden, arena);
    kept.h = keeps_all && state.block->norm ? Activation(hidden, arena) : h_;
    if (shape_.recomputation != Recomputation::kBlocks) LayBlock(state, kept, arena);
    if (!keeps_all) continue;
    if (!state.attention) kept.y = Activation(Mlp(*state.block).ffn, arena);
    kept.in_saved = saved(state.block->in);
    kept.out_saved = saved(state.block->out);
  }
}

void Model::LayActivations(kernels::Arena& arena) {
  const int64_t hidden = description().hidden;
  const auto places = static_cast<size_t>(shape_.in_flight);
  borders_.resize(has_head() ? places : 1);
  for (TensorView& border : borders_) border = Activation(hidden, arena);
  h_ = Activation(hidden, arena);
  for (BlockState& state : blocks_) state.kept.resize(places);
  for (size_t place = 0; place < places; ++place) LayPlace(place, arena);
  dh_ = Activation(hidden, arena);
  dx_ = Activation(hidden, arena);
  if (has_head()) {
    log_p_ = arena.Matrix(1, shape_.capacity_tokens);
    units_.resize(places);
    for (TensorView& unit : units_) unit = Activation(hidden, arena);
  }
  if (!has_embedding()) before_ = {Activation(hidden, arena), Activation(hidden, arena)};
  if (!has_head()) behind_ = {Activation(hidden, arena), Activation(hidden, arena)};
}

// Blocks run one after the other, and logits behind them, so their scratch overlaps in place; the
// workspace that follows begins behind the largest.
void Model::LayScratch(kernels::Arena& arena) {
  const int64_t mark = arena.used();
  int64_t scratch_bytes = 0;
  for (BlockState& state : blocks_) {
    Kept shared = state.kept[0];
    if (shape_.recomputation == Recomputation::kBlocks) LayBlock(state, shared, arena);
    if (state.attention) {
      const AttentionSpec& spec = Attention(*state.block);
      if (spec.qk_norm) state.scratch_qk = Activation(QkColumns(spec), arena);
      state.scratch_dmix = Activation(state.block->in.out_features(), arena);
    } else if (shape_.recomputation != Recomputation::kNothing) {
      shared.y = Activation(Mlp(*state.block).ffn, arena);
    }
    state.scratch_dy = Activation(state.block->out.in_features, arena);
    for (Kept& kept : state.kept) {
      if (shape_.recomputation == Recomputation::kBlocks) {
        shared.x = kept.x;
        kept = shared;
      } else if (!state.attention && shape_.recomputation == Recomputation::kProducts) {
        kept.y = shared.y;
      }
    }
    scratch_bytes = std::max(scratch_bytes, arena.used() - mark);
    arena.Rewind(mark);
  }
  if (has_head()) {
    const int64_t rows = std::min(shape_.capacity_tokens, sizes::kLogitRows);
    const int64_t vocabulary = description().vocabulary;
    logits_ = arena.Matrix(rows, sizes::RoundUp(vocabulary, sizes::kLogitAlignment))
                  .Columns(0, vocabulary);
    scratch_bytes = std::max(scratch_bytes, arena.used() - mark);
    arena.Rewind(mark);
  }
  arena.Allocate(scratch_bytes);
}

kernels::Limits Model::BackendLimits() const {
  kernels::Limits limits{.tokens = shape_.capacity_tokens,
                         .longest_segment = shape_.longest_sequence,
                         .hidden = description().hidden,
                         .vocabulary = has_head() ? description().vocabulary : 0,
                         .rank = shape_.rank_max,
                         .slots = 2 * shape_.slots_max};
  for (const BlockState& state : blocks_) {
    for (const storage::LinearGroup* group : {&state.block->in, &state.block->out}) {
      limits.features = std::max({limits.features, group->in_features, group->out_features()});
      limits.targets_in_group =
          std::max(limits.targets_in_group, static_cast<int64_t>(group->parts.size()));
    }
    if (!state.attention) continue;
    const AttentionSpec& spec = Attention(*state.block);
    limits.heads = std::max<int64_t>(limits.heads, spec.heads);
    limits.kv_heads = std::max<int64_t>(limits.kv_heads, spec.kv_heads);
    limits.head_size = std::max<int64_t>(limits.head_size, spec.head_size);
  }
  return limits;
}

}  // namespace lorad::worker
