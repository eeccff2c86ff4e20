// The frozen weights of a stage of a base model: in memory of their own, so that they may outlast
// the group that loaded them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "kernels/tensor.h"
#include "sizes/group.h"
#include "storage/models/model_description.h"
#include "storage/models/model_directory.h"

namespace lorad::worker {

using sizes::StageRange;

// All blocks on one stage.
StageRange WholeModel(const storage::ModelDescription& description);

// Where they lie is a function of the description, the range and the backend alone: groups of any
// shape use them as they are. What they take stands at Model (model.h), with all else that does.
// Threads: one.
class Weights {
 public:
  struct Block {
    kernels::TensorView norm;  // [1, H]; norms where the block has them
    std::unique_ptr<kernels::Linear> in;
    std::unique_ptr<kernels::Linear> out;
    kernels::TensorView out_norm;  // [1, H]
    kernels::QkNorm qk_norm;       // attention
  };

  // Memory for them, not filled yet. RESOURCE_EXHAUSTED as Backend::MakeArena.
  static absl::StatusOr<std::unique_ptr<Weights>> Make(kernels::Backend* backend,
                                                       const storage::ModelDescription& description,
                                                       StageRange range);
  // Laid over an arena of the caller's, which must outlive it, as must `backend`.
  Weights(kernels::Backend* backend, const storage::ModelDescription& description, StageRange range,
          kernels::Arena& arena);
  ~Weights();
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  // Bytes of the memory that Make takes.
  static int64_t CountBytes(kernels::Backend* backend, const storage::ModelDescription& description,
                            StageRange range);

  // Fills them from the directory the description came from, tensor by tensor, straight into their
  // memory. FAILED_PRECONDITION (MODEL_CHANGED): its files changed meanwhile.
  absl::Status Load(const storage::ModelDirectory& directory);

  const storage::ModelDescription& description() const { return description_; }
  const StageRange& range() const { return range_; }
  const kernels::Linear* embedding() const { return embedding_.get(); }  // null: not of this stage
  const kernels::Linear* head() const { return head_; }                  // likewise
  const kernels::TensorView& final_norm() const { return final_norm_; }  // [1, H]; with the head
  const std::vector<Block>& blocks() const { return blocks_; }           // of the range

 private:
  Block LayBlock(const storage::Block& block, kernels::Arena& arena);
  absl::Status LoadMatrix(const storage::ModelDirectory& directory, const std::string& tensor,
                          kernels::Linear& linear);
  absl::Status LoadGroup(const storage::ModelDirectory& directory,
                         const storage::LinearGroup& group, kernels::Linear& linear);
  absl::Status LoadNorm(const storage::ModelDirectory& directory, const storage::NormSpec& norm,
                        const kernels::TensorView& view);
  absl::Status LoadBlock(const storage::ModelDirectory& directory, const storage::Block& block,
                         const Block& laid);

  kernels::Backend* const backend_;
  const storage::ModelDescription description_;
  const StageRange range_;
  std::unique_ptr<kernels::Arena> arena_;  // null: the caller's
  std::unique_ptr<kernels::Linear> embedding_;
  std::unique_ptr<kernels::Linear> own_head_;  // null if tied to embedding_
  kernels::Linear* head_ = nullptr;
  kernels::TensorView final_norm_;
  std::vector<Block> blocks_;
};

// What a worker's process keeps from one group to the next: the weights that the last one loaded.
// A group that needs others has them dropped before it takes memory, so no two models lie there at
// once. Their bytes are those of the group that holds them: they are counted with it, once. See
// ADR 0043. Threads: one.
class KeptWeights {
 public:
  // Those of this stage, of the very files that they were read from; null: there are none, and
  // what was kept is dropped.
  std::shared_ptr<const Weights> Find(const storage::ModelDirectory& directory, StageRange range);
  // REQUIRES: they are loaded from it.
  void Keep(const storage::ModelDirectory& directory, std::shared_ptr<const Weights> weights);
  // Their memory goes with the last group that uses them.
  void Drop() { weights_.reset(); }

 private:
  std::string path_;
  std::string fingerprint_;
  std::string version_;
  std::shared_ptr<const Weights> weights_;
};

}  // namespace lorad::worker
