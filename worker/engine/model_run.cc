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

Model::Kept Model::KeptOf(const BlockState& state, const Pass& pass) {
  Kept kept = state.kept[pass.place];
  for (TensorView* view : {&kept.x, &kept.mix, &kept.h, &kept.y, &kept.lse, &kept.o, &kept.in_saved,
                           &kept.out_saved}) {
    if (!view->empty()) *view = view->Rows(0, pass.rows);
  }
  return kept;
}

const TensorView& Model::BorderAfter(size_t i, size_t place) const {
  if (i + 1 < blocks_.size()) return blocks_[i + 1].kept[place].x;
  return borders_.size() == 1 ? borders_.front() : borders_[place];
}

TensorView Model::Input(const Pass& pass, const BlockState& state) const {
  const Kept kept = KeptOf(state, pass);
  return state.block->norm ? kept.h : kept.x;
}

void Model::NormInput(const Pass& pass, const BlockState& state) {
  const Kept kept = KeptOf(state, pass);
  if (!state.block->norm) return;
  backend_->RmsNorm(pass.batch, kept.x, state.weights->norm, EpsOf(*state.block->norm), kept.h);
}

void Model::NormQk(const Pass& pass, const BlockState& state) {
  const int64_t columns = QkColumns(Attention(*state.block));
  backend_->QkNormRope(pass.batch, KeptOf(state, pass).mix.Columns(0, columns),
                       state.weights->qk_norm, state.angles, state.scratch_qk.Rows(0, pass.rows));
}

Qkv Model::Attended(const Pass& pass, const BlockState& state) const {
  const AttentionSpec& spec = Attention(*state.block);
  Qkv qkv = SplitQkv(KeptOf(state, pass).mix, spec);
  if (!spec.qk_norm) return qkv;
  const TensorView qk = state.scratch_qk.Rows(0, pass.rows);
  qkv.q = qk.Columns(0, qkv.q.columns);
  qkv.k = qk.Columns(qkv.q.columns, qkv.k.columns);
  return qkv;
}

void Model::MixAttention(const Pass& pass, const BlockState& state,
                         const kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  const AttentionSpec& spec = Attention(*state.block);
  const int32_t group = InGroup(state.index);
  if (!spec.qk_norm && !state.angles.empty()) {
    backend_->LoraLinearRope(pass.batch, *state.weights->in, table, group, Input(pass, state),
                             state.angles, QkColumns(spec), kept.mix, kept.in_saved);
  } else {
    backend_->LoraLinear(pass.batch, *state.weights->in, table, group, Input(pass, state), {},
                         kept.mix, kept.in_saved);
  }
  if (spec.qk_norm) NormQk(pass, state);
  const Qkv qkv = Attended(pass, state);
  backend_->Attention(pass.batch, KernelShape(spec), qkv.q, qkv.k, qkv.v, kept.y, kept.lse);
}

void Model::Mix(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  NormInput(pass, state);
  if (state.attention) return MixAttention(pass, state, table);
  backend_->LoraLinearSwiGlu(pass.batch, *state.weights->in, table, InGroup(state.index),
                             GateOf(Mlp(*state.block)), Input(pass, state), kept.mix, kept.y,
                             kept.in_saved);
}

void Model::Leave(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table,
                  const TensorView& residual, const TensorView& to) {
  const Kept kept = KeptOf(state, pass);
  backend_->LoraLinear(pass.batch, *state.weights->out, table, OutGroup(state.index), kept.y,
                       residual, to, kept.out_saved);
}

void Model::Restore(const Pass& pass, const BlockState& state, const kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  if (shape_.recomputation == Recomputation::kBlocks) {
    Mix(pass, state, table);
    if (state.block->out_norm) Leave(pass, state, table, {}, kept.o);
    return;
  }
  if (state.attention && Attention(*state.block).qk_norm) NormQk(pass, state);
  if (shape_.recomputation == Recomputation::kNothing) return;
  NormInput(pass, state);
  if (state.attention) return;
  backend_->SwiGlu(pass.batch, GateOf(Mlp(*state.block)), kept.mix, kept.y);
}

void Model::Forward(const Pass& pass, const kernels::AdapterTable& table, bool gradient) {
  assert(pass.rows >= 1 && pass.rows <= shape_.capacity_tokens && pass.loss_rows <= pass.rows);
  if (has_embedding()) {
    backend_->Embed(pass.batch, *weights_.embedding(),
                    EmbeddingFactor(description(), backend_->activation_dtype()),
                    KeptOf(blocks_[0], pass).x);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const BlockState& state = blocks_[i];
    const Kept kept = KeptOf(state, pass);
    const TensorView next = BorderAfter(i, pass.place).Rows(0, pass.rows);
    Mix(pass, state, table);
    if (state.block->out_norm) {
      Leave(pass, state, table, {}, kept.o);
      backend_->RmsNormAdd(pass.batch, kept.o, state.weights->out_norm,
                           EpsOf(*state.block->out_norm), kept.x, next);
    } else {
      Leave(pass, state, table, kept.x, next);
    }
  }
  if (!has_head() || pass.loss_rows == 0) return;
  backend_->LinearLoss(pass.batch, NormedOutput(pass), *weights_.head(),
                       static_cast<float>(description().logit_cap),
                       log_p_.Columns(0, pass.loss_rows),
                       gradient ? units_[pass.place].Rows(0, pass.loss_rows) : TensorView{});
}

TensorView Model::NormedOutput(const Pass& pass) {
  const TensorView h = h_.Rows(0, pass.rows);
  backend_->RmsNorm(pass.batch, borders_[pass.place].Rows(0, pass.rows), weights_.final_norm(),
                    EpsOf(description().final_norm), h);
  return h;
}

void Model::ReadBackLogits(const Pass& pass, std::span<const int32_t> rows, float* host) {
  const TensorView logits = logits_.Rows(0, static_cast<int64_t>(rows.size()));
  backend_->Logits(pass.batch, NormedOutput(pass), rows, *weights_.head(),
                   static_cast<float>(description().logit_cap), logits);
  backend_->ReadBack(logits, host);
}

void Model::ReadBackLogP(const Pass& pass, float* log_p) {
  if (pass.loss_rows > 0) backend_->ReadBack(log_p_.Columns(0, pass.loss_rows), log_p);
}

void Model::BackwardAttention(const Pass& pass, const BlockState& state, const TensorView& dout,
                              kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  const AttentionSpec& spec = Attention(*state.block);
  const TensorView dy = state.scratch_dy.Rows(0, pass.rows);
  const TensorView dmix = state.scratch_dmix.Rows(0, pass.rows);
  const Qkv qkv = Attended(pass, state);
  const Qkv dqkv = SplitQkv(dmix, spec);
  backend_->LoraLinearBackward(pass.batch, *state.weights->out, table, OutGroup(state.index),
                               kept.y, dout, dy, kept.out_saved);
  if (state.angles.empty()) {
    backend_->AttentionBackward(pass.batch, KernelShape(spec), qkv.q, qkv.k, qkv.v, kept.y,
                                kept.lse, dy, dqkv.q, dqkv.k, dqkv.v);
  } else {
    backend_->AttentionRopeBackward(pass.batch, KernelShape(spec), state.angles, qkv.q, qkv.k,
                                    qkv.v, kept.y, kept.lse, dy, dqkv.q, dqkv.k, dqkv.v);
  }
  if (!spec.qk_norm) return;
  const int64_t columns = QkColumns(spec);
  backend_->QkNormBackward(pass.batch, kept.mix.Columns(0, columns), state.weights->qk_norm,
                           dmix.Columns(0, columns));
}

void Model::BackwardMlp(const Pass& pass, const BlockState& state, const TensorView& dout,
                        kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  const TensorView dy = state.scratch_dy.Rows(0, pass.rows);
  backend_->LoraLinearSwiGluBackward(pass.batch, *state.weights->out, table, OutGroup(state.index),
                                     GateOf(Mlp(*state.block)), kept.mix, kept.y, dout, dy,
                                     kept.mix, kept.out_saved);
}

void Model::BackwardBlock(const Pass& pass, const BlockState& state, kernels::AdapterTable& table) {
  const Kept kept = KeptOf(state, pass);
  const TensorView dh = dh_.Rows(0, pass.rows);
  const TensorView dx = dx_.Rows(0, pass.rows);
  Restore(pass, state, table);
  TensorView dout = dx;
  if (state.block->out_norm) {
    dout = kept.o;  // written where it was made
    backend_->RmsNormGradient(pass.batch, kept.o, state.weights->out_norm,
                              EpsOf(*state.block->out_norm), dx, dout);
  }
  if (state.attention) {
    BackwardAttention(pass, state, dout, table);
  } else {
    BackwardMlp(pass, state, dout, table);
  }
  // Below block 0 there is nothing that trains.
  const bool last = state.index == 0;
  backend_->LoraLinearBackward(pass.batch, *state.weights->in, table, InGroup(state.index),
                               Input(pass, state),
                               state.attention ? state.scratch_dmix.Rows(0, pass.rows) : kept.mix,
                               last ? TensorView{} : dh, kept.in_saved);
  if (last) return;
  if (state.block->norm) {
    backend_->RmsNormBackward(pass.batch, kept.x, state.weights->norm, EpsOf(*state.block->norm),
                              dh, dx);
  } else {
    backend_->Add(pass.batch, dh, dx);
  }
}

void Model::BackwardHead(const Pass& pass, std::span<const float> weights) {
  assert(pass.loss_rows > 0 && static_cast<int64_t>(weights.size()) == pass.loss_rows);
  const TensorView dh = dh_.Rows(0, pass.rows);
  const TensorView dx = dx_.Rows(0, pass.rows);
  backend_->LossBackward(pass.batch, weights, units_[pass.place].Rows(0, pass.loss_rows), dh);
  backend_->Zero(dx);
  backend_->RmsNormBackward(pass.batch, borders_[pass.place].Rows(0, pass.rows),
                            weights_.final_norm(), EpsOf(description().final_norm), dh, dx);
}

void Model::Backward(const Pass& pass, kernels::AdapterTable& table,
                     std::span<const float> weights) {
  if (has_head()) BackwardHead(pass, weights);
  for (size_t i = blocks_.size(); i-- > 0;) BackwardBlock(pass, blocks_[i], table);
}

}  // namespace lorad::worker
