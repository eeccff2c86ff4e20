// The CUDA backend as far as counting arenas go: what it takes it takes as the real one does, by
// kernels/cuda/memory.h, so a group and a slot can be counted where there is no GPU. Everything
// else ends the test.
#pragma once

#include <chrono>
#include <cstdlib>
#include <memory>
#include <span>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/memory.h"

namespace lorad::kernels {

class CountingCudaBackend final : public Backend {
 public:
  CountingCudaBackend(DType activation, int multiprocessors)
      : activation_(activation), multiprocessors_(multiprocessors) {}

  Device device() const override { return Device::kCuda; }
  DType activation_dtype() const override { return activation_; }
  void ReserveWorkspace(const Limits& limits, Arena& arena) override {
    if (!arena.counting()) NoDevice();
    cuda::TakeWorkspace(limits, activation_, multiprocessors_, arena);
  }
  std::unique_ptr<Linear> MakeLinear(int64_t outputs, int64_t inputs, bool has_bias,
                                     Arena& arena) override {
    if (!arena.counting()) NoDevice();
    cuda::TakeLinear(outputs, inputs, has_bias, activation_, arena);
    return std::make_unique<Linear>();
  }

  // ---- what needs a device ----

  std::string NumericsId() const override { NoDevice(); }
  absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t) override { NoDevice(); }
  absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t) override { NoDevice(); }
  void Synchronize() override { NoDevice(); }
  void Mark(int) override { NoDevice(); }
  void WaitFor(int) override { NoDevice(); }
  double MsBetween(int, int) override { NoDevice(); }
  std::chrono::steady_clock::time_point MomentOf(int) override { NoDevice(); }
  void CopyToDevice(const float*, const TensorView&) override { NoDevice(); }
  void CopyToHost(const TensorView&, float*) override { NoDevice(); }
  void ReadBack(const TensorView&, float*) override { NoDevice(); }
  float* MapRows(Linear&, int64_t, int64_t) override { NoDevice(); }
  float* MapBias(Linear&, int64_t, int64_t) override { NoDevice(); }
  void Unmap(Linear&) override { NoDevice(); }
  std::unique_ptr<AdapterTable> MakeAdapterTable(int32_t, int32_t) override { NoDevice(); }
  void SetTargets(AdapterTable&, int32_t, int32_t, std::span<const LoraTarget>) override {
    NoDevice();
  }
  void ClearSlot(AdapterTable&, int32_t) override { NoDevice(); }
  void TakeOverflow(AdapterTable&, int32_t, int32_t*) override { NoDevice(); }
  std::unique_ptr<Batch> PrepareBatch(const BatchDescription&) override { NoDevice(); }
  void Zero(const TensorView&) override { NoDevice(); }
  void Cast(const TensorView&, const TensorView&) override { NoDevice(); }
  void Embed(const Batch&, const Linear&, float, const TensorView&) override { NoDevice(); }
  void RmsNorm(const Batch&, const TensorView&, const TensorView&, float,
               const TensorView&) override {
    NoDevice();
  }
  void RmsNormBackward(const Batch&, const TensorView&, const TensorView&, float, const TensorView&,
                       const TensorView&) override {
    NoDevice();
  }
  void RmsNormGradient(const Batch&, const TensorView&, const TensorView&, float, const TensorView&,
                       const TensorView&) override {
    NoDevice();
  }
  void RmsNormAdd(const Batch&, const TensorView&, const TensorView&, float, const TensorView&,
                  const TensorView&) override {
    NoDevice();
  }
  void Add(const Batch&, const TensorView&, const TensorView&) override { NoDevice(); }
  void QkNormRope(const Batch&, const TensorView&, const QkNorm&, const HeadAngles&,
                  const TensorView&) override {
    NoDevice();
  }
  void QkNormBackward(const Batch&, const TensorView&, const QkNorm&, const TensorView&) override {
    NoDevice();
  }
  void FillRope(std::span<const float>, float, const TensorView&) override { NoDevice(); }
  void Rope(const Batch&, const HeadAngles&, const TensorView&) override { NoDevice(); }
  void RopeBackward(const Batch&, const HeadAngles&, const TensorView&) override { NoDevice(); }
  void Attention(const Batch&, const AttentionShape&, const TensorView&, const TensorView&,
                 const TensorView&, const TensorView&, const TensorView&) override {
    NoDevice();
  }
  void AttentionBackward(const Batch&, const AttentionShape&, const TensorView&, const TensorView&,
                         const TensorView&, const TensorView&, const TensorView&, const TensorView&,
                         const TensorView&, const TensorView&, const TensorView&) override {
    NoDevice();
  }
  void SwiGlu(const Batch&, Gate, const TensorView&, const TensorView&) override { NoDevice(); }
  void SwiGluBackward(const Batch&, Gate, const TensorView&, const TensorView&,
                      const TensorView&) override {
    NoDevice();
  }
  void LoraLinear(const Batch&, const Linear&, const AdapterTable&, int32_t, const TensorView&,
                  const TensorView&, const TensorView&, const TensorView&) override {
    NoDevice();
  }
  void LoraLinearBackward(const Batch&, const Linear&, AdapterTable&, int32_t, const TensorView&,
                          const TensorView&, const TensorView&, const TensorView&) override {
    NoDevice();
  }
  void LinearLoss(const Batch&, const TensorView&, const Linear&, float, const TensorView&,
                  const TensorView&) override {
    NoDevice();
  }
  void LossBackward(const Batch&, std::span<const float>, const TensorView&,
                    const TensorView&) override {
    NoDevice();
  }
  void Logits(const Batch&, const TensorView&, std::span<const int32_t>, const Linear&, float,
              const TensorView&) override {
    NoDevice();
  }
  void InitializeA(uint64_t, int32_t, int32_t, const TensorView&) override { NoDevice(); }
  std::unique_ptr<Optimizer> MakeOptimizer(std::span<const OptimizerTensor>) override {
    NoDevice();
  }
  void SumsOfSquares(std::span<const NormRequest>) override { NoDevice(); }
  double FoldSums(std::span<const double>) const override { NoDevice(); }
  void AdamW(std::span<const StepRequest>) override { NoDevice(); }
  void DropGradients(const Optimizer&) override { NoDevice(); }

 private:
  [[noreturn]] static void NoDevice() { std::abort(); }

  const DType activation_;
  const int multiprocessors_;
};

}  // namespace lorad::kernels
