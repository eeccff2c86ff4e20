#include "tests/worker/late_backend.h"

#include <array>
#include <chrono>
#include <cmath>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace lorad::worker {
namespace {

using kernels::AdapterTable;
using kernels::Arena;
using kernels::Backend;
using kernels::Batch;
using kernels::Linear;
using kernels::NormRequest;
using kernels::Optimizer;
using kernels::OptimizerTensor;
using kernels::StepRequest;
using kernels::TensorView;

template <class T>
std::vector<T> Copied(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// Shared with the operations that are still to come, for a handle may end before them.
struct LateOptimizer final : Optimizer {
  std::shared_ptr<Optimizer> of_backend;
};

class LateBackend final : public Backend {
 public:
  explicit LateBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  // ---- the device ----

  kernels::Device device() const override { return backend_->device(); }
  kernels::DType activation_dtype() const override { return backend_->activation_dtype(); }
  std::string NumericsId() const override { return backend_->NumericsId(); }
  absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) override {
    return backend_->MakeArena(bytes);
  }
  absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) override {
    return backend_->MakeHostArena(bytes);
  }
  void ReserveWorkspace(const kernels::Limits& limits, Arena& arena) override {
    if (!arena.counting()) Synchronize();
    backend_->ReserveWorkspace(limits, arena);
  }
  void Synchronize() override {
    RunUntil([] { return false; });
  }
  void Mark(int mark) override {
    ++set_.at(mark);
    Later([this, mark] {
      backend_->Mark(mark);
      ++passed_.at(mark);
    });
  }
  void WaitFor(int mark) override {
    RunUntil([&] { return passed_.at(mark) == set_.at(mark); });
  }
  double MsBetween(int from, int to) override {
    WaitFor(from);
    WaitFor(to);
    return backend_->MsBetween(from, to);
  }
  std::chrono::steady_clock::time_point MomentOf(int mark) override {
    return backend_->MomentOf(mark);
  }
  void CopyToDevice(const float* host, const TensorView& device) override {
    std::vector<float> values(host, host + device.elements());
    Later([this, values = std::move(values), device] {
      backend_->CopyToDevice(values.data(), device);
    });
  }
  void CopyToHost(const TensorView& device, float* host) override {
    Synchronize();
    backend_->CopyToHost(device, host);
  }
  void ReadBack(const TensorView& device, float* host) override {
    std::fill_n(host, device.elements(), std::numeric_limits<float>::quiet_NaN());
    Later([=, this] { backend_->ReadBack(device, host); });
  }

  // ---- handles ----

  std::unique_ptr<Linear> MakeLinear(int64_t outputs, int64_t inputs, bool has_bias,
                                     Arena& arena) override {
    return backend_->MakeLinear(outputs, inputs, has_bias, arena);
  }
  float* MapRows(Linear& linear, int64_t first, int64_t count) override {
    return backend_->MapRows(linear, first, count);
  }
  float* MapBias(Linear& linear, int64_t first, int64_t count) override {
    return backend_->MapBias(linear, first, count);
  }
  void Unmap(Linear& linear) override { backend_->Unmap(linear); }
  std::unique_ptr<AdapterTable> MakeAdapterTable(int32_t slots, int32_t groups) override {
    return backend_->MakeAdapterTable(slots, groups);
  }
  void SetTargets(AdapterTable& table, int32_t slot, int32_t group,
                  std::span<const kernels::LoraTarget> targets) override {
    Later([=, this, &table, targets = Copied(targets)] {
      backend_->SetTargets(table, slot, group, targets);
    });
  }
  void ClearSlot(AdapterTable& table, int32_t slot) override {
    Later([=, this, &table] { backend_->ClearSlot(table, slot); });
  }
  void TakeOverflow(AdapterTable& table, int32_t slot, int32_t* marked) override {
    *marked = 1;
    Later([=, this, &table] { backend_->TakeOverflow(table, slot, marked); });
  }
  std::unique_ptr<Batch> PrepareBatch(const kernels::BatchDescription& description) override {
    return backend_->PrepareBatch(description);
  }

  // ---- operations ----

  void Zero(const TensorView& x) override {
    Later([=, this] { backend_->Zero(x); });
  }
  void Cast(const TensorView& from, const TensorView& to) override {
    Later([=, this] { backend_->Cast(from, to); });
  }
  void Embed(const Batch& batch, const Linear& table, float factor, const TensorView& x) override {
    Later([=, this, &batch, &table] { backend_->Embed(batch, table, factor, x); });
  }
  void RmsNorm(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
               const TensorView& y) override {
    Later([=, this, &batch] { backend_->RmsNorm(batch, x, weight, eps, y); });
  }
  void RmsNormBackward(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    Later([=, this, &batch] { backend_->RmsNormBackward(batch, x, weight, eps, dy, dx); });
  }
  void RmsNormGradient(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    Later([=, this, &batch] { backend_->RmsNormGradient(batch, x, weight, eps, dy, dx); });
  }
  void RmsNormAdd(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                  const TensorView& residual, const TensorView& y) override {
    Later([=, this, &batch] { backend_->RmsNormAdd(batch, x, weight, eps, residual, y); });
  }
  void Add(const Batch& batch, const TensorView& x, const TensorView& y) override {
    Later([=, this, &batch] { backend_->Add(batch, x, y); });
  }
  void QkNormRope(const Batch& batch, const TensorView& x, const kernels::QkNorm& norm,
                  const kernels::HeadAngles& angles, const TensorView& y) override {
    Later([=, this, &batch] { backend_->QkNormRope(batch, x, norm, angles, y); });
  }
  void QkNormBackward(const Batch& batch, const TensorView& x, const kernels::QkNorm& norm,
                      const TensorView& d) override {
    Later([=, this, &batch] { backend_->QkNormBackward(batch, x, norm, d); });
  }
  void FillRope(std::span<const float> inverse_frequencies, float factor,
                const TensorView& table) override {
    Later([=, this, frequencies = Copied(inverse_frequencies)] {
      backend_->FillRope(frequencies, factor, table);
    });
  }
  void Rope(const Batch& batch, const kernels::HeadAngles& angles, const TensorView& x) override {
    Later([=, this, &batch] { backend_->Rope(batch, angles, x); });
  }
  void RopeBackward(const Batch& batch, const kernels::HeadAngles& angles,
                    const TensorView& dx) override {
    Later([=, this, &batch] { backend_->RopeBackward(batch, angles, dx); });
  }
  void Attention(const Batch& batch, const kernels::AttentionShape& shape, const TensorView& q,
                 const TensorView& k, const TensorView& v, const TensorView& out,
                 const TensorView& lse) override {
    Later([=, this, &batch] { backend_->Attention(batch, shape, q, k, v, out, lse); });
  }
  void AttentionBackward(const Batch& batch, const kernels::AttentionShape& shape,
                         const TensorView& q, const TensorView& k, const TensorView& v,
                         const TensorView& out, const TensorView& lse, const TensorView& dout,
                         const TensorView& dq, const TensorView& dk,
                         const TensorView& dv) override {
    Later([=, this, &batch] {
      backend_->AttentionBackward(batch, shape, q, k, v, out, lse, dout, dq, dk, dv);
    });
  }
  void SwiGlu(const Batch& batch, kernels::Gate gate, const TensorView& gate_up,
              const TensorView& y) override {
    Later([=, this, &batch] { backend_->SwiGlu(batch, gate, gate_up, y); });
  }
  void SwiGluBackward(const Batch& batch, kernels::Gate gate, const TensorView& gate_up,
                      const TensorView& dy, const TensorView& dgate_up) override {
    Later([=, this, &batch] { backend_->SwiGluBackward(batch, gate, gate_up, dy, dgate_up); });
  }
  void LoraLinear(const Batch& batch, const Linear& linear, const AdapterTable& table,
                  int32_t group, const TensorView& x, const TensorView& residual,
                  const TensorView& y, const TensorView& saved) override {
    Later([=, this, &batch, &linear, &table] {
      backend_->LoraLinear(batch, linear, table, group, x, residual, y, saved);
    });
  }
  void LoraLinearBackward(const Batch& batch, const Linear& linear, AdapterTable& table,
                          int32_t group, const TensorView& x, const TensorView& dy,
                          const TensorView& dx, const TensorView& saved) override {
    Later([=, this, &batch, &linear, &table] {
      backend_->LoraLinearBackward(batch, linear, table, group, x, dy, dx, saved);
    });
  }
  void LinearLoss(const Batch& batch, const TensorView& x, const Linear& head, float cap,
                  const TensorView& log_p, const TensorView& unit) override {
    Later([=, this, &batch, &head] { backend_->LinearLoss(batch, x, head, cap, log_p, unit); });
  }
  void LossBackward(const Batch& batch, std::span<const float> weights, const TensorView& unit,
                    const TensorView& dx) override {
    Later([=, this, &batch, weights = Copied(weights)] {
      backend_->LossBackward(batch, weights, unit, dx);
    });
  }
  void Logits(const Batch& batch, const TensorView& x, std::span<const int32_t> rows,
              const Linear& head, float cap, const TensorView& z) override {
    Later([=, this, &batch, &head, rows = Copied(rows)] {
      backend_->Logits(batch, x, rows, head, cap, z);
    });
  }

  // ---- slots and the optimizer ----

  void InitializeA(uint64_t seed, int32_t layer, int32_t target, const TensorView& a) override {
    Later([=, this] { backend_->InitializeA(seed, layer, target, a); });
  }
  std::unique_ptr<Optimizer> MakeOptimizer(std::span<const OptimizerTensor> tensors) override {
    auto optimizer = std::make_unique<LateOptimizer>();
    optimizer->of_backend = backend_->MakeOptimizer(tensors);
    return optimizer;
  }
  void SumsOfSquares(std::span<const NormRequest> requests) override {
    for (const NormRequest& request : requests) {
      *request.sums = std::numeric_limits<double>::quiet_NaN();
      Later([this, sums = request.sums, optimizer = Of(*request.optimizer)] {
        const NormRequest of_backend = {optimizer.get(), sums};
        backend_->SumsOfSquares({&of_backend, 1});
      });
    }
  }
  double FoldSums(std::span<const double> sums) const override { return backend_->FoldSums(sums); }
  void AdamW(std::span<const StepRequest> requests) override {
    for (const StepRequest& request : requests) {
      Later([this, options = request.options, optimizer = Of(*request.optimizer)] {
        const StepRequest of_backend = {optimizer.get(), options};
        backend_->AdamW({&of_backend, 1});
      });
    }
  }
  void DropGradients(const Optimizer& optimizer) override {
    Later([this, optimizer = Of(optimizer)] { backend_->DropGradients(*optimizer); });
  }

 private:
  static std::shared_ptr<Optimizer> Of(const Optimizer& optimizer) {
    return static_cast<const LateOptimizer&>(optimizer).of_backend;
  }

  void Later(std::function<void()> operation) { operations_.push_back(std::move(operation)); }

  template <class Done>
  void RunUntil(Done done) {
    while (!operations_.empty() && !done()) {
      const std::function<void()> operation = std::move(operations_.front());
      operations_.pop_front();
      operation();
    }
  }

  const std::unique_ptr<Backend> backend_;
  std::deque<std::function<void()>> operations_;
  std::array<int64_t, kMarks> set_ = {};
  std::array<int64_t, kMarks> passed_ = {};
};

}  // namespace

std::unique_ptr<kernels::Backend> MakeLateBackend(std::unique_ptr<kernels::Backend> backend) {
  return std::make_unique<LateBackend>(std::move(backend));
}

}  // namespace lorad::worker
