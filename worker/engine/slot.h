#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/arena.h"
#include "kernels/backend.h"
#include "storage/models/model_description.h"
#include "worker/engine/group_engine.h"
#include "worker/engine/model.h"

namespace lorad::worker {

// A slot holds a list of these; optimizer, norm, checkpoint and export iterate over it and know
// nothing else about the method. (Other LoRA variants are other lists.)
struct SlotTensor {
  enum class Initialization { kKaimingUniform, kZero };

  std::string name;  // PEFT key
  int64_t rows = 0;
  int64_t columns = 0;
  bool trainable = true;
  int32_t shared_with = -1;  // index of the tensor whose memory this one is; -1: its own
  double learning_rate_factor = 1;
  double decay_factor = 1;
  double scale = 1;  // of the product that it is part of
  Initialization initialization = Initialization::kZero;
  // Where the model uses it.
  int32_t layer = 0;
  int32_t target = 0;  // index in TargetModules(description)
  int32_t block = 0;   // index in description.blocks
  bool of_out_group = false;
  int64_t first_output = 0;  // row range of the linear group
  int64_t outputs = 0;
  char matrix = 'A';

  int64_t elements() const { return rows * columns; }
};

// A projection that a slot trains in some layers.
struct SlotModules {
  std::string target;
  std::vector<int32_t> layers;  // empty: all
  int64_t rank = 8;
  double scale = 1;
};

// How a slot is trained: everything but the tensors.
struct SlotOptions {
  std::string job;
  std::vector<SlotModules> modules;
  double dropout = 0;
  uint64_t init_seed = 0;
  uint64_t dropout_seed = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double max_grad_norm = 0;      // 0: no clipping
  double loraplus_lr_ratio = 1;  // learning-rate factor of B matrices
  bool answers_only = false;     // none of its tensors is trainable
};

// The tensors of a LoRA adapter on one stage, in the order (layer, target, A before B): the order
// in which norms are folded. Refused: a target or a layer the model does not have, one that is
// named twice, no target, a rank out of 1..kRankMax, dropout outside [0, 1).
absl::StatusOr<std::vector<SlotTensor>> ListLoraTensors(
    const storage::ModelDescription& description, StageRange range, const SlotOptions& options);

// The memory that a slot takes: the device's, and the host's where a save is staged.
struct SlotBytes {
  int64_t device = 0;
  int64_t host = 0;
};

// The place of one adapter's trainable tensors on a worker, in arenas of its own. Counting rules:
// every line one allocation rounded up to 64 bytes, e = elements of a tensor, in the list's order:
//   per tensor that shares no other's memory   4 e (master); where activations are not float32 also
//                                              the copy that products read: 2 bytes an element, the
//                                              rank rounded up to kernels::kRankAlignment
//   and where it is trainable                  4 e (exp_avg), 4 e (exp_avg_sq), 8 e (gradient)
//   on the host, once                          12 bytes an element of those that train: staging of
//                                              a save
// Threads: one; what a save has staged may be read on others.
class Slot {
 public:
  // The bytes that the arenas of such a slot must hold.
  static SlotBytes CountBytes(const kernels::Backend& backend,
                              const std::vector<SlotTensor>& tensors);
  // The part of them that counts against the worker's memory: on a device of its own memory not the
  // host's.
  static int64_t BudgetBytes(const kernels::Backend& backend,
                             const std::vector<SlotTensor>& tensors);

  // Lays the tensors out in arenas of its own (all zero). RESOURCE_EXHAUSTED from the system.
  static absl::StatusOr<std::unique_ptr<Slot>> Create(kernels::Backend* backend,
                                                      std::vector<SlotTensor> tensors,
                                                      SlotOptions options);
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  // PEFT's initialization: A Kaiming-uniform from init_seed, B zero.
  void Initialize();

  // Enters into `table` where its targets lie. `model` numbers the groups.
  void Bind(const Model& model, kernels::AdapterTable* table, int32_t index) const;

  // Where tensor i lies in the device's memory, float32 but for the copy.
  struct Place {
    kernels::TensorView master;
    kernels::TensorView copy;        // what products read; empty where that is the master
    kernels::TensorView exp_avg;     // empty where it does not train
    kernels::TensorView exp_avg_sq;  // likewise
    int64_t* gradient = nullptr;     // fixed point
  };
  const std::vector<Place>& places() const { return places_; }
  const std::vector<SlotTensor>& tensors() const { return tensors_; }
  const SlotOptions& options() const { return options_; }
  // BudgetBytes of it.
  int64_t bytes() const { return bytes_; }

  // Brings the copies up to date after masters were written from outside the optimizer.
  void RefreshCopies();

  // Steps done.
  int64_t step() const { return step_; }
  void set_step(int64_t step) { step_ = step; }

  // The optimizer of its tensors, learning rate and decay with each tensor's factors.
  const kernels::Optimizer& optimizer() const { return *optimizer_; }

  // ---- saving ----

  // Copies master and moments into staging. REQUIRES: nobody reads what was staged before.
  void Stage(const std::string& numerics_id);
  // Good until the next Stage.
  const Shard& staged() const { return staged_; }

 private:
  std::unique_ptr<kernels::Optimizer> MakeOptimizer() const;
  Slot(kernels::Backend* backend, std::vector<SlotTensor> tensors, SlotOptions options)
      : backend_(backend), tensors_(std::move(tensors)), options_(std::move(options)) {}
  static std::vector<Place> Lay(const kernels::Backend& backend,
                                const std::vector<SlotTensor>& tensors, kernels::Arena& arena);
  static float* LayStaging(const std::vector<SlotTensor>& tensors, kernels::Arena& arena);

  kernels::Backend* const backend_;
  const std::vector<SlotTensor> tensors_;
  const SlotOptions options_;
  std::unique_ptr<kernels::Arena> arena_;
  std::unique_ptr<kernels::Arena> staging_arena_;
  int64_t bytes_ = 0;
  std::vector<Place> places_;
  std::unique_ptr<kernels::Optimizer> optimizer_;
  float* staging_ = nullptr;
  int64_t step_ = 0;
  Shard staged_;
};

}  // namespace lorad::worker
