#include <bit>
#include <cassert>

#include "worker/engine/model.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;
using storage::AttentionSpec;

// To the nearest bfloat16, ties to even.
float RoundToBfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  return std::bit_cast<float>((bits + 0x7FFFu + (bits >> 16 & 1u)) & 0xFFFF0000u);
}

float EmbeddingFactor(const storage::ModelDescription& description, kernels::DType dtype) {
  const auto factor = static_cast<float>(description.embedding_factor);
  const bool rounds = description.embedding_factor_rounds && dtype == kernels::DType::kBfloat16;
  return rounds ? RoundToBfloat16(factor) : factor;
}

}  // namespace

TensorView Model::RowsOf(const TensorView& saved, int64_t rows) const {
  return shape_.recomputation == Recomputation::kNothing ? saved.Rows(0, rows) : TensorView{};
}

const TensorView& Model::BorderAfter(size_t i) const {
  return i + 1 < blocks_.size() ? blocks_[i + 1].x : border_;
}

TensorView Model::Input(const BlockState& state, int64_t rows) const {
  return state.block->norm ? state.h.Rows(0, rows) : state.x.Rows(0, rows);
}

void Model::NormInput(const kernels::Batch& batch, int64_t rows, const BlockState& state) {
  if (!state.block->norm) return;
  backend_->RmsNorm(batch, state.x.Rows(0, rows), state.norm, EpsOf(*state.block->norm),
                    state.h.Rows(0, rows));
}

void Model::NormQk(const kernels::Batch& batch, int64_t rows, const BlockState& state) {
  const int64_t columns = QkColumns(Attention(*state.block));
  backend_->QkNormRope(batch, state.mix.Rows(0, rows).Columns(0, columns), state.qk_norm,
                       state.angles, state.scratch_qk.Rows(0, rows));
}

Qkv Model::Attended(const BlockState& state, int64_t rows) const {
  const AttentionSpec& spec = Attention(*state.block);
  Qkv qkv = SplitQkv(state.mix.Rows(0, rows), spec);
  if (!spec.qk_norm) return qkv;
  const TensorView qk = state.scratch_qk.Rows(0, rows);
  qkv.q = qk.Columns(0, qkv.q.columns);
  qkv.k = qk.Columns(qkv.q.columns, qkv.k.columns);
  return qkv;
}

void Model::MixAttention(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                         const kernels::AdapterTable& table) {
  const AttentionSpec& spec = Attention(*state.block);
  const TensorView mix = state.mix.Rows(0, rows);
  const TensorView saved = RowsOf(state.in_saved, rows);
  const int32_t group = InGroup(state.index);
  if (!spec.qk_norm && !state.angles.empty()) {
    backend_->LoraLinearRope(batch, *state.in, table, group, Input(state, rows), state.angles,
                             QkColumns(spec), mix, saved);
  } else {
    backend_->LoraLinear(batch, *state.in, table, group, Input(state, rows), {}, mix, saved);
  }
  if (spec.qk_norm) NormQk(batch, rows, state);
  const Qkv qkv = Attended(state, rows);
  backend_->Attention(batch, KernelShape(spec), qkv.q, qkv.k, qkv.v, state.y.Rows(0, rows),
                      state.lse.Rows(0, rows));
}

void Model::Mix(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                const kernels::AdapterTable& table) {
  NormInput(batch, rows, state);
  if (state.attention) return MixAttention(batch, rows, state, table);
  backend_->LoraLinearSwiGlu(batch, *state.in, table, InGroup(state.index),
                             GateOf(Mlp(*state.block)), Input(state, rows), state.mix.Rows(0, rows),
                             state.y.Rows(0, rows), RowsOf(state.in_saved, rows));
}

void Model::Leave(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                  const kernels::AdapterTable& table, const TensorView& residual,
                  const TensorView& to) {
  backend_->LoraLinear(batch, *state.out, table, OutGroup(state.index), state.y.Rows(0, rows),
                       residual, to, RowsOf(state.out_saved, rows));
}

void Model::Restore(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                    const kernels::AdapterTable& table) {
  if (shape_.recomputation == Recomputation::kBlocks) {
    Mix(batch, rows, state, table);
    if (state.block->out_norm) Leave(batch, rows, state, table, {}, state.o.Rows(0, rows));
    return;
  }
  if (state.attention && Attention(*state.block).qk_norm) NormQk(batch, rows, state);
  if (shape_.recomputation == Recomputation::kNothing) return;
  NormInput(batch, rows, state);
  if (state.attention) return;
  backend_->SwiGlu(batch, GateOf(Mlp(*state.block)), state.mix.Rows(0, rows),
                   state.y.Rows(0, rows));
}

void Model::Forward(const kernels::Batch& batch, int64_t rows, int64_t loss_rows,
                    const kernels::AdapterTable& table, bool gradient) {
  assert(rows >= 1 && rows <= shape_.capacity_tokens && loss_rows <= rows);
  if (embedding_ != nullptr) {
    backend_->Embed(batch, *embedding_, EmbeddingFactor(description_, backend_->activation_dtype()),
                    blocks_[0].x.Rows(0, rows));
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const BlockState& state = blocks_[i];
    const TensorView x = state.x.Rows(0, rows);
    const TensorView next = BorderAfter(i).Rows(0, rows);
    Mix(batch, rows, state, table);
    if (state.block->out_norm) {
      const TensorView o = state.o.Rows(0, rows);
      Leave(batch, rows, state, table, {}, o);
      backend_->RmsNormAdd(batch, o, state.out_norm, EpsOf(*state.block->out_norm), x, next);
    } else {
      Leave(batch, rows, state, table, x, next);
    }
  }
  loss_rows_ = loss_rows;
  if (head_ == nullptr || loss_rows == 0) return;
  const TensorView h = h_.Rows(0, rows);
  backend_->RmsNorm(batch, border_.Rows(0, rows), final_norm_, EpsOf(description_.final_norm), h);
  backend_->LinearLoss(batch, h, *head_, static_cast<float>(description_.logit_cap),
                       log_p_.Columns(0, loss_rows),
                       gradient ? unit_.Rows(0, loss_rows) : TensorView{});
}

void Model::ReadBackLogP(float* log_p) {
  if (loss_rows_ > 0) backend_->ReadBack(log_p_.Columns(0, loss_rows_), log_p);
}

void Model::BackwardAttention(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                              const TensorView& dout, kernels::AdapterTable& table) {
  const AttentionSpec& spec = Attention(*state.block);
  const TensorView y = state.y.Rows(0, rows);
  const TensorView lse = state.lse.Rows(0, rows);
  const TensorView dy = state.scratch_dy.Rows(0, rows);
  const TensorView dmix = state.scratch_dmix.Rows(0, rows);
  const Qkv qkv = Attended(state, rows);
  const Qkv dqkv = SplitQkv(dmix, spec);
  backend_->LoraLinearBackward(batch, *state.out, table, OutGroup(state.index), y, dout, dy,
                               RowsOf(state.out_saved, rows));
  if (state.angles.empty()) {
    backend_->AttentionBackward(batch, KernelShape(spec), qkv.q, qkv.k, qkv.v, y, lse, dy, dqkv.q,
                                dqkv.k, dqkv.v);
  } else {
    backend_->AttentionRopeBackward(batch, KernelShape(spec), state.angles, qkv.q, qkv.k, qkv.v, y,
                                    lse, dy, dqkv.q, dqkv.k, dqkv.v);
  }
  if (!spec.qk_norm) return;
  const int64_t columns = QkColumns(spec);
  backend_->QkNormBackward(batch, state.mix.Rows(0, rows).Columns(0, columns), state.qk_norm,
                           dmix.Columns(0, columns));
}

void Model::BackwardMlp(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                        const TensorView& dout, kernels::AdapterTable& table) {
  const TensorView mix = state.mix.Rows(0, rows);
  const TensorView y = state.y.Rows(0, rows);
  const TensorView dy = state.scratch_dy.Rows(0, rows);
  backend_->LoraLinearSwiGluBackward(batch, *state.out, table, OutGroup(state.index),
                                     GateOf(Mlp(*state.block)), mix, y, dout, dy, mix,
                                     RowsOf(state.out_saved, rows));
}

void Model::BackwardBlock(const kernels::Batch& batch, int64_t rows, const BlockState& state,
                          kernels::AdapterTable& table) {
  const TensorView x = state.x.Rows(0, rows);
  const TensorView dh = dh_.Rows(0, rows);
  const TensorView dx = dx_.Rows(0, rows);
  Restore(batch, rows, state, table);
  TensorView dout = dx;
  if (state.block->out_norm) {
    const TensorView o = state.o.Rows(0, rows);
    dout = o;  // written where it was made
    backend_->RmsNormGradient(batch, o, state.out_norm, EpsOf(*state.block->out_norm), dx, dout);
  }
  if (state.attention) {
    BackwardAttention(batch, rows, state, dout, table);
  } else {
    BackwardMlp(batch, rows, state, dout, table);
  }
  // Below block 0 there is nothing that trains.
  const bool last = state.index == 0;
  backend_->LoraLinearBackward(
      batch, *state.in, table, InGroup(state.index), Input(state, rows),
      state.attention ? state.scratch_dmix.Rows(0, rows) : state.mix.Rows(0, rows),
      last ? TensorView{} : dh, RowsOf(state.in_saved, rows));
  if (last) return;
  if (state.block->norm) {
    backend_->RmsNormBackward(batch, x, state.norm, EpsOf(*state.block->norm), dh, dx);
  } else {
    backend_->Add(batch, dh, dx);
  }
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
                            EpsOf(description_.final_norm), dh, dx);
  for (size_t i = blocks_.size(); i-- > 0;) BackwardBlock(batch, rows, blocks_[i], table);
}

}  // namespace lorad::worker
