// One forward and backward of the LoRA linear on a GPU, with random adapters, and its check against
// float64, part by part.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "tests/kernels/cuda/lora/world.h"

namespace lorad::kernels::cuda::testing {

inline constexpr int32_t kGroup = 0;

// True, with a warning, where there is no GPU.
bool Skipped();

struct Options {
  DType dtype;
  int64_t inputs;
  int64_t outputs;
  int64_t rank_max;
  int64_t multiple;  // of target ranges
  float dropout;
  bool residual;
  bool saved;
};

// Whether dropout keeps a feature of a row of the segment, by the host's Philox.
bool Kept(const Segment& segment, const LoraTarget& target, int64_t row, int64_t feature);

// A world with `slots` random adapters and everything one forward and backward needs.
class Case {
 public:
  Case(Generator& random, const Options& options, const BatchOf& batch, int32_t slots)
      : options_(options),
        batch_(batch),
        world_(options.dtype, LimitsOf(options, batch.tokens()), options.inputs, options.outputs,
               slots),
        x_(batch.tokens(), options.inputs, options.dtype),
        dy_(batch.tokens(), options.outputs, options.dtype),
        residual_(batch.tokens(), options.outputs, options.dtype),
        y_(batch.tokens(), options.outputs, options.dtype),
        dx_(batch.tokens(), options.inputs, options.dtype),
        saved_(batch.tokens(), 3 * PaddedRank(options.rank_max), options.dtype) {
    world_.weight().Write(RandomValues(random, options.outputs * options.inputs, 1));
    for (int32_t slot = 0; slot < slots; ++slot) {
      adapters_.push_back(std::make_unique<DeviceAdapter>(
          options.inputs, options.dtype,
          RandomTargets(random, options.inputs, options.outputs, options.rank_max, options.multiple,
                        options.dropout)));
      world_.table().SetTargets(slot, kGroup, adapters_.back()->targets());
    }
    x_.Write(RandomValues(random, batch.tokens() * options.inputs, 1));
    dy_.Write(RandomValues(random, batch.tokens() * options.outputs, 1));
    residual_.Write(RandomValues(random, batch.tokens() * options.outputs, 1));
  }

  static Limits LimitsOf(const Options& options, int64_t tokens) {
    return {.tokens = tokens,
            .features = std::max(options.inputs, options.outputs),
            .rank = options.rank_max,
            .slots = 8,
            .targets_in_group = 3};
  }

  LoraWorld& world() { return world_; }
  DeviceMatrix& x() { return x_; }
  DeviceMatrix& dy() { return dy_; }
  DeviceMatrix& y() { return y_; }
  DeviceMatrix& dx() { return dx_; }
  DeviceMatrix& saved() { return saved_; }
  DeviceAdapter& adapter(size_t slot) { return *adapters_[slot]; }
  size_t adapters() const { return adapters_.size(); }

  void Run() {
    world_.PoisonScratch();
    for (DeviceMatrix* out : {&y_, &dx_, &saved_}) out->Poison();
    for (const auto& adapter : adapters_) adapter->ClearGradients();
    const CudaBatch batch(world_.context(), batch_.description());
    const LoraContext lora = world_.lora();
    const TensorView saved = options_.saved ? saved_.view() : TensorView();
    LoraLinear(lora, batch, world_.linear(), world_.table(), kGroup, x_.view(),
               options_.residual ? residual_.view() : TensorView(), y_.view(), saved);
    LoraLinearBackward(lora, batch, world_.linear(), world_.table(), kGroup, x_.view(), dy_.view(),
                       dx_.view(), saved);
    world_.Synchronize();
  }

  void CheckAll();

 private:
  void CheckRows();
  void CheckSaved(const std::vector<float>& saved);
  void CheckGradients();
  std::vector<double> Masked(const Segment& segment, const LoraTarget& target,
                             const std::vector<float>& x, int64_t row) const;
  // S and dS of one row and target, unrounded.
  std::vector<double> Down(const Segment& segment, const HostTarget& host,
                           const std::vector<float>& x, int64_t row) const;
  std::vector<double> DownGradient(const HostTarget& host, const std::vector<float>& dy,
                                   int64_t row) const;

  const Options options_;
  const BatchOf batch_;
  LoraWorld world_;
  DeviceMatrix x_, dy_, residual_, y_, dx_, saved_;
  std::vector<std::unique_ptr<DeviceAdapter>> adapters_;
};

BatchOf RandomBatch(Generator& random, int64_t segments, int64_t rows_max, int32_t slots);

}  // namespace lorad::kernels::cuda::testing
