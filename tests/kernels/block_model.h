// One block of a model (attention and MLP) with embedding, head and adapters, forward and backward
// through the interface of the backends: what the tests of exactness and of the steady state train.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "tests/kernels/lora_fixture.h"

namespace lorad::kernels::testing {

struct BlockShape {
  int64_t hidden;
  int64_t feed_forward;
  int64_t heads;
  int64_t kv_heads;
  int64_t head_size;
  int64_t vocabulary;  // its last word's embedding is not a number
  int64_t rank;        // of job 0; other jobs have 4 per number, job kDivergedJob a huge master
};

inline constexpr int kWatchedJob = 0;
inline constexpr int kDivergedJob = 2;
inline constexpr int kJobs = 3;

// A sequence of some job (-1: adapter off); its tokens and masks are functions of its name.
struct BlockSequence {
  int name;
  int64_t rows;
  int job;
  bool broken;  // its first token's embedding is not a number
};
using Microbatch = std::vector<BlockSequence>;

// Everything that the watched job's rows, accumulators and matrices came to.
struct BlockBits {
  std::map<int, std::vector<float>> sequences;  // by name, of the last step
  std::vector<int64_t> accumulators;            // before the last step
  std::vector<float> state;                     // masters and moments after it
  bool operator==(const BlockBits&) const = default;
};

class BlockModel {
 public:
  // jobs[slot]: the job in it, or -1. The model and a job's adapter are functions of `seed` and the
  // job's number, not of the slot.
  BlockModel(World& world, const BlockShape& shape, uint64_t seed,
             std::vector<int> jobs = {0, 1, 2});

  static Limits LimitsOf(const BlockShape& shape, int64_t tokens, int64_t longest);

  // Forward and backward of one microbatch; only enqueues unless `bits` asks for results.
  void Run(const Microbatch& microbatch, BlockBits* bits);
  // One step of the watched job; strangers' rate is zero, and what the diverged one gathered is
  // dropped.
  void Step();
  // Every microbatch, then a step; so many times.
  BlockBits Train(const std::vector<Microbatch>& microbatches, int steps = 1);

 private:
  enum Group : int32_t { kQkv, kOut, kGateUp, kDown, kGroups };
  static constexpr int64_t kTargetsOfGroup = 3;
  static constexpr int64_t kMatricesMax = 2 * kTargetsOfGroup * kGroups;  // of a slot
  struct Buffers;

  void MakeReadings();
  int64_t SavedColumns() const {
    return LoraSavedColumns(kTargetsOfGroup, std::max<int64_t>(shape_.rank, 4 * kJobs));
  }
  BatchData Describe(const Microbatch& microbatch) const;
  void Forward(const Batch& batch, const Buffers& buffers);
  void Backward(const Batch& batch, const Buffers& buffers, int64_t loss_rows);
  void Linear(const Batch& batch, Group group, const TensorView& x, const TensorView& residual,
              const TensorView& y, const TensorView& saved);
  void LinearBackward(const Batch& batch, Group group, const TensorView& x, const TensorView& dy,
                      const TensorView& dx, const TensorView& saved);
  void Collect(const Microbatch& microbatch, const BatchData& data, const Buffers& buffers,
               BlockBits* bits);
  TensorView Heads(const TensorView& qkv, int64_t first, int64_t count) const {
    return qkv.Columns(first * shape_.head_size, count * shape_.head_size);
  }
  std::vector<DeviceAdapter*> AdaptersOf(int job);
  std::unique_ptr<Optimizer> OptimizerOf(int job);

  World& world_;
  Backend& backend_;
  const BlockShape shape_;
  const AttentionShape attention_;
  const std::vector<int> jobs_;
  const int64_t qkv_columns_;
  std::unique_ptr<kernels::Linear> embedding_;
  std::unique_ptr<kernels::Linear> head_;
  std::unique_ptr<Guarded> norm_;
  std::unique_ptr<Guarded> rope_;
  std::vector<std::unique_ptr<kernels::Linear>> linears_;
  std::unique_ptr<AdapterTable> table_;
  // What is read back without a wait, as the engine does; nobody looks.
  struct Readings {
    float* log_p = nullptr;
    double* sums = nullptr;        // [slots, kMatricesMax]
    int32_t* overflows = nullptr;  // [slots]
  };
  std::unique_ptr<Arena> host_arena_;
  Readings readings_;
  std::vector<DeviceAdapter> adapters_;                 // [group * slots + slot]
  std::vector<std::unique_ptr<Optimizer>> optimizers_;  // [slots]; null where nothing trains
  int64_t steps_ = 0;
};

}  // namespace lorad::kernels::testing
