#include "worker/engine/model.h"

#include <algorithm>
#include <cassert>
#include <string>
#include <variant>

namespace lorad::worker {
namespace {

using kernels::TensorView;
using storage::AttentionSpec;
using storage::GatedMlpSpec;

bool HasBias(const storage::LinearGroup& group) {
  return std::any_of(group.parts.begin(), group.parts.end(),
                     [](const storage::LinearPart& part) { return !part.bias.empty(); });
}

const AttentionSpec& Attention(const storage::Block& block) {
  return std::get<AttentionSpec>(block.mixer);
}

int64_t Ffn(const storage::Block& block) { return std::get<GatedMlpSpec>(block.mixer).ffn; }

kernels::AttentionShape KernelShape(const AttentionSpec& spec) {
  return {.heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_size = spec.head_size,
          .scale = static_cast<float>(spec.scale)};
}

// Columns of a [T, (N + 2G) D] buffer.
struct Qkv {
  TensorView q, k, v;  // side by side
};

Qkv SplitQkv(const TensorView& mix, const AttentionSpec& spec) {
  const int64_t q = int64_t{spec.heads} * spec.head_size;
  const int64_t kv = int64_t{spec.kv_heads} * spec.head_size;
  return {mix.Columns(0, q), mix.Columns(q, kv), mix.Columns(q + kv, kv)};
}

bool SameRope(const storage::RopeSpec& a, const storage::RopeSpec& b) {
  return a.inverse_frequencies == b.inverse_frequencies;
}

}  // namespace

StageRange WholeModel(const storage::ModelDescription& description) {
  return {0, static_cast<int32_t>(description.blocks.size())};
}

Model::Model(kernels::Backend* backend, const storage::ModelDescription& description,
             StageRange range, GroupShape shape, kernels::Arena& arena)
    : backend_(backend), description_(description), range_(range), shape_(shape) {
  assert(range.first_block >= 0 && range.first_block < range.end_block);
  assert(range.end_block <= static_cast<int32_t>(description_.blocks.size()));
  assert(shape.longest_sequence >= 1 && shape.longest_sequence <= shape.capacity_tokens);
  LayWeights(arena);
  LayActivations(arena);
  backend_->ReserveWorkspace(BackendLimits(), arena);
}

int64_t Model::CountBytes(kernels::Backend* backend, const storage::ModelDescription& description,
                          StageRange range, GroupShape shape) {
  kernels::Arena counting(backend->device());
  Model model(backend, description, range, shape, counting);
  return counting.bytes_max();
}

kernels::TensorView Model::RopeTable(const storage::RopeSpec& rope, kernels::Arena& arena) {
  for (const RopeState& state : ropes_) {
    if (SameRope(*state.rope, rope)) return state.table;
  }
  const auto head_size = 2 * static_cast<int64_t>(rope.inverse_frequencies.size());
  ropes_.push_back({&rope, arena.Matrix(shape_.longest_sequence, head_size)});
  return ropes_.back().table;
}

void Model::LayWeights(kernels::Arena& arena) {
  const int64_t hidden = description_.hidden;
  const bool has_head = range_.has_head(description_);
  if (range_.has_embedding()) {
    embedding_ = backend_->MakeLinear(description_.vocabulary, hidden, false, arena);
  }
  for (int32_t i = range_.first_block; i < range_.end_block; ++i) {
    const storage::Block& block = description_.blocks[i];
    BlockState state;
    state.block = &block;
    state.index = i;
    state.attention = std::holds_alternative<AttentionSpec>(block.mixer);
    state.norm = arena.Matrix(1, hidden);
    state.in = backend_->MakeLinear(block.in.out_features(), block.in.in_features,
                                    HasBias(block.in), arena);
    state.out = backend_->MakeLinear(block.out.out_features(), block.out.in_features,
                                     HasBias(block.out), arena);
    if (state.attention) state.rope = RopeTable(Attention(block).rope, arena);
    blocks_.push_back(std::move(state));
  }
  if (!has_head) return;
  final_norm_ = arena.Matrix(1, hidden);
  if (description_.tied_head && embedding_ != nullptr) {
    head_ = embedding_.get();
  } else {
    own_head_ = backend_->MakeLinear(description_.vocabulary, hidden, false, arena);
    head_ = own_head_.get();
  }
}

void Model::LayActivations(kernels::Arena& arena) {
  const int64_t tokens = shape_.capacity_tokens;
  const int64_t hidden = description_.hidden;
  const auto activation = [&](int64_t columns) {
    return arena.Matrix(tokens, columns, backend_->activation_dtype());
  };
  const auto saved = [&](const storage::LinearGroup& group) {
    return activation(
        kernels::LoraSavedColumns(static_cast<int64_t>(group.parts.size()), shape_.rank_max));
  };
  const bool keeps_blocks = shape_.recomputation != Recomputation::kBlocks;
  const bool keeps_all = shape_.recomputation == Recomputation::kNothing;
  const auto lay_block = [&](BlockState& state) {
    state.mix = activation(state.block->in.out_features());
    if (!state.attention) return;
    state.y = activation(state.block->out.in_features);
    state.lse = arena.Matrix(tokens, Attention(*state.block).heads);
  };
  border_ = activation(hidden);
  h_ = activation(hidden);
  for (BlockState& state : blocks_) {
    state.x = activation(hidden);
    state.h = keeps_all ? activation(hidden) : h_;
    if (keeps_blocks) lay_block(state);
    if (!keeps_all) continue;
    if (!state.attention) state.y = activation(Ffn(*state.block));
    state.in_saved = saved(state.block->in);
    state.out_saved = saved(state.block->out);
  }
  dh_ = activation(hidden);
  dx_ = activation(hidden);
  if (range_.has_head(description_)) {
    log_p_ = arena.Matrix(1, tokens);
    unit_ = activation(hidden);
  }
  // Blocks run one after the other, so their scratch overlaps in place; the workspace that follows
  // begins behind the largest.
  const int64_t mark = arena.used();
  int64_t scratch_bytes = 0;
  for (BlockState& state : blocks_) {
    if (!keeps_blocks) lay_block(state);
    if (state.attention) {
      state.scratch_dmix = activation(state.block->in.out_features());
    } else if (!keeps_all) {
      state.y = activation(Ffn(*state.block));
    }
    state.scratch_dy = activation(state.block->out.in_features);
    scratch_bytes = std::max(scratch_bytes, arena.used() - mark);
    arena.Rewind(mark);
  }
  arena.Allocate(scratch_bytes);
}

kernels::Limits Model::BackendLimits() const {
  kernels::Limits limits{.tokens = shape_.capacity_tokens,
                         .longest_segment = shape_.longest_sequence,
                         .hidden = description_.hidden,
                         .vocabulary = description_.vocabulary,
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

// ---- loading ----

absl::Status Model::LoadGroup(const storage::ModelDirectory& directory,
                              const storage::LinearGroup& group, kernels::Linear& linear) {
  const bool has_bias = HasBias(group);
  int64_t first = 0;
  for (const storage::LinearPart& part : group.parts) {
    float* rows = backend_->MapRows(linear, first, part.out_features);
    const absl::Status status = directory.ReadTensor(part.tensor, rows);
    backend_->Unmap(linear);
    if (!status.ok()) return status;
    if (has_bias) {
      float* bias = backend_->MapBias(linear, first, part.out_features);
      absl::Status read;
      if (part.bias.empty()) {
        std::fill(bias, bias + part.out_features, 0.0f);
      } else {
        read = directory.ReadTensor(part.bias, bias);
      }
      backend_->Unmap(linear);
      if (!read.ok()) return read;
    }
    first += part.out_features;
  }
  return absl::OkStatus();
}

absl::Status Model::LoadNorm(const storage::ModelDirectory& directory,
                             const storage::NormSpec& norm, const TensorView& view) {
  std::vector<float> values(view.columns);
  const absl::Status status = directory.ReadTensor(norm.tensor, values.data());
  if (status.ok()) backend_->CopyToDevice(values.data(), view);
  return status;
}

void Model::FillRopeTables() {
  for (const RopeState& state : ropes_) {
    backend_->FillRope(state.rope->inverse_frequencies, 1.0f, state.table);
  }
}

absl::Status Model::Load(const storage::ModelDirectory& directory) {
  const auto load_matrix = [&](const std::string& tensor, kernels::Linear& linear) {
    float* rows = backend_->MapRows(linear, 0, description_.vocabulary);
    const absl::Status status = directory.ReadTensor(tensor, rows);
    backend_->Unmap(linear);
    return status;
  };
  if (embedding_ != nullptr) {
    absl::Status status = load_matrix(description_.embedding_tensor, *embedding_);
    if (!status.ok()) return status;
  }
  for (const BlockState& state : blocks_) {
    absl::Status status = LoadNorm(directory, state.block->norm, state.norm);
    if (status.ok()) status = LoadGroup(directory, state.block->in, *state.in);
    if (status.ok()) status = LoadGroup(directory, state.block->out, *state.out);
    if (!status.ok()) return status;
  }
  if (head_ != nullptr) {
    absl::Status status = LoadNorm(directory, description_.final_norm, final_norm_);
    if (status.ok() && own_head_ != nullptr) {
      status = load_matrix(description_.head_tensor, *own_head_);
    }
    if (!status.ok()) return status;
  }
  FillRopeTables();
  backend_->Synchronize();
  return absl::OkStatus();
}

// ---- running ----

TensorView Model::RowsOf(const TensorView& saved, int64_t rows) const {
  return shape_.recomputation == Recomputation::kNothing ? saved.Rows(0, rows) : TensorView{};
}

const TensorView& Model::BorderAfter(size_t i) const {
  return i + 1 < blocks_.size() ? blocks_[i + 1].x : border_;
}

void Model::Mix(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                const kernels::AdapterTable& table) {
  const TensorView h = state.h.Rows(0, rows);
  const TensorView mix = state.mix.Rows(0, rows);
  const TensorView y = state.y.Rows(0, rows);
  backend_->RmsNorm(batch, state.x.Rows(0, rows), state.norm,
                    static_cast<float>(state.block->norm.eps), h);
  const TensorView saved = RowsOf(state.in_saved, rows);
  if (!state.attention) {
    return backend_->LoraLinearSwiGlu(batch, *state.in, table, InGroup(state.index),
                                      kernels::Gate::kSilu, h, mix, y, saved);
  }
  const AttentionSpec& spec = Attention(*state.block);
  const Qkv qkv = SplitQkv(mix, spec);
  backend_->LoraLinearRope(batch, *state.in, table, InGroup(state.index), h, state.rope,
                           qkv.q.columns + qkv.k.columns, mix, saved);
  backend_->Attention(batch, KernelShape(spec), qkv.q, qkv.k, qkv.v, y, state.lse.Rows(0, rows));
}

void Model::Restore(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                    const kernels::AdapterTable& table) {
  if (shape_.recomputation == Recomputation::kNothing) return;
  if (shape_.recomputation == Recomputation::kBlocks) return Mix(batch, rows, state, table);
  backend_->RmsNorm(batch, state.x.Rows(0, rows), state.norm,
                    static_cast<float>(state.block->norm.eps), state.h.Rows(0, rows));
  if (state.attention) return;
  backend_->SwiGlu(batch, kernels::Gate::kSilu, state.mix.Rows(0, rows), state.y.Rows(0, rows));
}

void Model::Forward(const kernels::Batch& batch, int64_t rows, int64_t loss_rows,
                    const kernels::AdapterTable& table, bool gradient) {
  assert(rows >= 1 && rows <= shape_.capacity_tokens && loss_rows <= rows);
  if (embedding_ != nullptr) backend_->Embed(batch, *embedding_, 1, blocks_[0].x.Rows(0, rows));
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const BlockState& state = blocks_[i];
    Mix(batch, rows, state, table);
    backend_->LoraLinear(batch, *state.out, table, OutGroup(state.index), state.y.Rows(0, rows),
                         state.x.Rows(0, rows), BorderAfter(i).Rows(0, rows),
                         RowsOf(state.out_saved, rows));
  }
  loss_rows_ = loss_rows;
  if (head_ == nullptr || loss_rows == 0) return;
  const TensorView h = h_.Rows(0, rows);
  backend_->RmsNorm(batch, border_.Rows(0, rows), final_norm_,
                    static_cast<float>(description_.final_norm.eps), h);
  backend_->LinearLoss(batch, h, *head_, 0, log_p_.Columns(0, loss_rows),
                       gradient ? unit_.Rows(0, loss_rows) : TensorView{});
}

void Model::ReadBackLogP(float* log_p) {
  if (loss_rows_ > 0) backend_->ReadBack(log_p_.Columns(0, loss_rows_), log_p);
}

void Model::BackwardAttention(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                              kernels::AdapterTable& table) {
  const AttentionSpec& spec = Attention(*state.block);
  const TensorView dx = dx_.Rows(0, rows);
  const TensorView y = state.y.Rows(0, rows);
  const TensorView dy = state.scratch_dy.Rows(0, rows);
  const TensorView dmix = state.scratch_dmix.Rows(0, rows);
  const Qkv mix = SplitQkv(state.mix.Rows(0, rows), spec);
  const Qkv dqkv = SplitQkv(dmix, spec);
  backend_->LoraLinearBackward(batch, *state.out, table, OutGroup(state.index), y, dx, dy,
                               RowsOf(state.out_saved, rows));
  backend_->AttentionRopeBackward(batch, KernelShape(spec), state.rope, mix.q, mix.k, mix.v, y,
                                  state.lse.Rows(0, rows), dy, dqkv.q, dqkv.k, dqkv.v);
}

void Model::BackwardMlp(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                        kernels::AdapterTable& table) {
  const TensorView mix = state.mix.Rows(0, rows);
  const TensorView y = state.y.Rows(0, rows);
  const TensorView dy = state.scratch_dy.Rows(0, rows);
  backend_->LoraLinearSwiGluBackward(batch, *state.out, table, OutGroup(state.index),
                                     kernels::Gate::kSilu, mix, y, dx_.Rows(0, rows), dy, mix,
                                     RowsOf(state.out_saved, rows));
}

void Model::Backward(const kernels::Batch& batch, int64_t rows, kernels::AdapterTable& table,
                     std::span<const float> weights) {
  assert(head_ != nullptr && static_cast<int64_t>(weights.size()) == loss_rows_);
  if (loss_rows_ == 0) return;
  const TensorView dh = dh_.Rows(0, rows);
  const TensorView dx = dx_.Rows(0, rows);
  backend_->LossBackward(batch, weights, unit_.Rows(0, loss_rows_), dh);
  backend_->Zero(dx);
  backend_->RmsNormBackward(batch, border_.Rows(0, rows), final_norm_,
                            static_cast<float>(description_.final_norm.eps), dh, dx);
  for (size_t i = blocks_.size(); i-- > 0;) {
    const BlockState& state = blocks_[i];
    const TensorView x = state.x.Rows(0, rows);
    const auto eps = static_cast<float>(state.block->norm.eps);
    Restore(batch, rows, state, table);
    if (state.attention) {
      BackwardAttention(batch, rows, state, table);
    } else {
      BackwardMlp(batch, rows, state, table);
    }
    const TensorView h = state.h.Rows(0, rows);
    // Below block 0 there is nothing that trains.
    const bool last = state.index == 0;
    backend_->LoraLinearBackward(
        batch, *state.in, table, InGroup(state.index), h,
        state.attention ? state.scratch_dmix.Rows(0, rows) : state.mix.Rows(0, rows),
        last ? TensorView{} : dh, RowsOf(state.in_saved, rows));
    if (!last) backend_->RmsNormBackward(batch, x, state.norm, eps, dh, dx);
  }
}

}  // namespace lorad::worker
