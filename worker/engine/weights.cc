#include "worker/engine/weights.h"

#include <algorithm>
#include <cassert>
#include <utility>
#include <vector>

#include "worker/engine/model_parts.h"

namespace lorad::worker {
namespace {

using kernels::TensorView;
using storage::AttentionSpec;

bool HasBias(const storage::LinearGroup& group) {
  return std::any_of(group.parts.begin(), group.parts.end(),
                     [](const storage::LinearPart& part) { return !part.bias.empty(); });
}

}  // namespace

StageRange WholeModel(const storage::ModelDescription& description) {
  return {0, static_cast<int32_t>(description.blocks.size())};
}

Weights::Weights(kernels::Backend* backend, const storage::ModelDescription& description,
                 StageRange range, kernels::Arena& arena)
    : backend_(backend), description_(description), range_(range) {
  assert(range.first_block >= 0 && range.first_block < range.end_block);
  assert(range.end_block <= WholeModel(description_).end_block);
  const int64_t hidden = description_.hidden;
  if (range_.has_embedding()) {
    embedding_ = backend_->MakeLinear(description_.vocabulary, hidden, false, arena);
  }
  for (int32_t i = range_.first_block; i < range_.end_block; ++i) {
    blocks_.push_back(LayBlock(description_.blocks[i], arena));
  }
  if (!range_.has_head(WholeModel(description_).end_block)) return;
  final_norm_ = arena.Matrix(1, hidden);
  if (description_.tied_head && embedding_ != nullptr) {
    head_ = embedding_.get();
  } else {
    own_head_ = backend_->MakeLinear(description_.vocabulary, hidden, false, arena);
    head_ = own_head_.get();
  }
}

Weights::~Weights() {
  if (arena_ != nullptr) backend_->Synchronize();  // before memory goes
}

int64_t Weights::CountBytes(kernels::Backend* backend, const storage::ModelDescription& description,
                            StageRange range) {
  kernels::Arena counting(backend->device());
  const Weights weights(backend, description, range, counting);
  return counting.bytes_max();
}

absl::StatusOr<std::unique_ptr<Weights>> Weights::Make(kernels::Backend* backend,
                                                       const storage::ModelDescription& description,
                                                       StageRange range) {
  auto arena = backend->MakeArena(CountBytes(backend, description, range));
  if (!arena.ok()) return arena.status();
  auto weights = std::make_unique<Weights>(backend, description, range, **arena);
  weights->arena_ = *std::move(arena);
  return weights;
}

Weights::Block Weights::LayBlock(const storage::Block& block, kernels::Arena& arena) {
  Block laid;
  if (block.norm) laid.norm = arena.Matrix(1, description_.hidden);
  laid.in =
      backend_->MakeLinear(block.in.out_features(), block.in.in_features, HasBias(block.in), arena);
  laid.out = backend_->MakeLinear(block.out.out_features(), block.out.in_features,
                                  HasBias(block.out), arena);
  if (block.out_norm) laid.out_norm = arena.Matrix(1, description_.hidden);
  if (!std::holds_alternative<AttentionSpec>(block.mixer)) return laid;
  const AttentionSpec& spec = Attention(block);
  if (!spec.qk_norm) return laid;
  laid.qk_norm = {.q_weight = arena.Matrix(1, spec.qk_norm->q.size),
                  .k_weight = arena.Matrix(1, spec.qk_norm->k.size),
                  .q_columns = int64_t{spec.heads} * spec.head_size,
                  .eps = EpsOf(spec.qk_norm->q)};
  return laid;
}

absl::Status Weights::LoadMatrix(const storage::ModelDirectory& directory,
                                 const std::string& tensor, kernels::Linear& linear) {
  float* rows = backend_->MapRows(linear, 0, description_.vocabulary);
  const absl::Status status = directory.ReadTensor(tensor, rows);
  backend_->Unmap(linear);
  return status;
}

absl::Status Weights::LoadGroup(const storage::ModelDirectory& directory,
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

absl::Status Weights::LoadNorm(const storage::ModelDirectory& directory,
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

absl::Status Weights::LoadBlock(const storage::ModelDirectory& directory,
                                const storage::Block& block, const Block& laid) {
  absl::Status status = LoadGroup(directory, block.in, *laid.in);
  if (status.ok()) status = LoadGroup(directory, block.out, *laid.out);
  if (status.ok() && block.norm) status = LoadNorm(directory, *block.norm, laid.norm);
  if (status.ok() && block.out_norm) status = LoadNorm(directory, *block.out_norm, laid.out_norm);
  if (!status.ok() || !std::holds_alternative<AttentionSpec>(block.mixer)) return status;
  const auto& qk_norm = Attention(block).qk_norm;
  if (!qk_norm) return status;
  status = LoadNorm(directory, qk_norm->q, laid.qk_norm.q_weight);
  return status.ok() ? LoadNorm(directory, qk_norm->k, laid.qk_norm.k_weight) : status;
}

absl::Status Weights::Load(const storage::ModelDirectory& directory) {
  if (embedding_ != nullptr) {
    absl::Status status = LoadMatrix(directory, description_.embedding_tensor, *embedding_);
    if (!status.ok()) return status;
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const size_t number = static_cast<size_t>(range_.first_block) + i;
    absl::Status status = LoadBlock(directory, description_.blocks[number], blocks_[i]);
    if (!status.ok()) return status;
  }
  if (head_ != nullptr) {
    absl::Status status = LoadNorm(directory, description_.final_norm, final_norm_);
    if (status.ok() && own_head_ != nullptr) {
      status = LoadMatrix(directory, description_.head_tensor, *own_head_);
    }
    if (!status.ok()) return status;
  }
  backend_->Synchronize();
  return directory.CheckUnchanged();
}

// ---- from group to group ----

std::shared_ptr<const Weights> KeptWeights::Find(const storage::ModelDirectory& directory,
                                                 StageRange range) {
  const bool same = weights_ != nullptr && path_ == directory.path() &&
                    fingerprint_ == directory.fingerprint() && version_ == directory.version() &&
                    weights_->range() == range;
  if (!same) Drop();
  return weights_;
}

void KeptWeights::Keep(const storage::ModelDirectory& directory,
                       std::shared_ptr<const Weights> weights) {
  path_ = directory.path();
  fingerprint_ = directory.fingerprint();
  version_ = directory.version();
  weights_ = std::move(weights);
}

}  // namespace lorad::worker
