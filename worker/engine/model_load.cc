#include <algorithm>
#include <string>
#include <vector>

#include "worker/engine/model.h"

namespace lorad::worker {

using kernels::TensorView;

absl::Status Model::LoadGroup(const storage::ModelDirectory& directory,
                              const storage::LinearGroup& group, kernels::Linear& linear) {
  const bool has_bias =
      std::any_of(group.parts.begin(), group.parts.end(),
                  [](const storage::LinearPart& part) { return !part.bias.empty(); });
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
  if (!status.ok()) return status;
  if (norm.offset != 0 || norm.factor != 1) {
    for (float& value : values) {
      value = static_cast<float>(norm.factor) * (static_cast<float>(norm.offset) + value);
    }
  }
  backend_->CopyToDevice(values.data(), view);
  return absl::OkStatus();
}

absl::Status Model::LoadBlock(const storage::ModelDirectory& directory, const BlockState& state) {
  const storage::Block& block = *state.block;
  absl::Status status = LoadGroup(directory, block.in, *state.in);
  if (status.ok()) status = LoadGroup(directory, block.out, *state.out);
  if (status.ok() && block.norm) status = LoadNorm(directory, *block.norm, state.norm);
  if (status.ok() && block.out_norm) status = LoadNorm(directory, *block.out_norm, state.out_norm);
  if (!status.ok() || !state.attention) return status;
  const auto& qk_norm = Attention(block).qk_norm;
  if (!qk_norm) return status;
  status = LoadNorm(directory, qk_norm->q, state.qk_norm.q_weight);
  return status.ok() ? LoadNorm(directory, qk_norm->k, state.qk_norm.k_weight) : status;
}

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
    absl::Status status = LoadBlock(directory, state);
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

}  // namespace lorad::worker
