#include "kernels/cpu/cpu_backend.h"

#include <array>
#include <cassert>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/handles.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/pages.h"

namespace lorad::kernels {
namespace cpu {
namespace {

// Raised whenever an operation's cut or order of sums changes, for then bits do.
constexpr int kRevision = 4;

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int threads) : pool_(threads), loops_(*SupportedLoops().back()) { WarmUp(); }

  Device device() const override { return Device::kCpu; }
  DType activation_dtype() const override { return DType::kFloat32; }

  std::string NumericsId() const override {
    return absl::StrCat("cpu/", MatmulId(), "/", loops_.name, "/", kRevision);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) override {
    return MakePagedArena(bytes);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) override {
    return MakePagedArena(bytes);
  }

  void ReserveWorkspace(const Limits& limits, Arena& arena) override {
    assert(limits.features <= kDropoutFeaturesMax);
    Workspace workspace = TakeWorkspace(limits, pool_.threads(), arena);
    if (!arena.counting()) workspace_ = std::move(workspace);
  }

  void Synchronize() override {}

  void Mark(int mark) override { marks_.at(mark) = std::chrono::steady_clock::now(); }
  void WaitFor(int /*mark*/) override {}
  double MsBetween(int from, int to) override {
    return std::chrono::duration<double, std::milli>(marks_.at(to) - marks_.at(from)).count();
  }

  std::chrono::steady_clock::time_point MomentOf(int mark) override { return marks_.at(mark); }

  void CopyToDevice(const float* host, const TensorView& device) override {
    for (int64_t row = 0; row < device.rows; ++row) {
      std::memcpy(device.row(row), host + row * device.columns, RowBytes(device));
    }
  }

  void CopyToHost(const TensorView& device, float* host) override {
    for (int64_t row = 0; row < device.rows; ++row) {
      std::memcpy(host + row * device.columns, device.row(row), RowBytes(device));
    }
  }
  void ReadBack(const TensorView& device, float* host) override { CopyToHost(device, host); }

  std::unique_ptr<Linear> MakeLinear(int64_t outputs, int64_t inputs, bool has_bias,
                                     Arena& arena) override {
    auto linear = std::make_unique<CpuLinear>();
    linear->weight = arena.Matrix(outputs, inputs);
    linear->has_bias = has_bias;
    if (has_bias) linear->bias = arena.Matrix(1, outputs);
    return linear;
  }

  float* MapRows(Linear& linear, int64_t first, int64_t count) override {
    return Of(linear).weight.Rows(first, count).f32();
  }

  float* MapBias(Linear& linear, int64_t first, int64_t count) override {
    assert(Of(linear).has_bias);
    return Of(linear).bias.Columns(first, count).f32();
  }

  void Unmap(Linear&) override {}

  std::unique_ptr<AdapterTable> MakeAdapterTable(int32_t slots, int32_t groups) override {
    return std::make_unique<CpuAdapterTable>(slots, groups);
  }

  void SetTargets(AdapterTable& table, int32_t slot, int32_t group,
                  std::span<const LoraTarget> targets) override {
    int64_t end = 0;
    for (const LoraTarget& target : targets) {
      assert(target.first_output >= end && target.outputs > 0 && target.rank > 0);
      assert(target.a != nullptr && target.b != nullptr);
      assert(target.dropout >= 0 && target.dropout < 1);
      assert(target.layer >= 0 && target.layer < kLayersMax);
      assert(target.target >= 0 && target.target < kTargetsMax);
      end = target.first_output + target.outputs;
    }
    Of(table).at(slot, group).assign(targets.begin(), targets.end());
  }

  void ClearSlot(AdapterTable& table, int32_t slot) override {
    CpuAdapterTable& cpu_table = Of(table);
    for (int32_t group = 0; group < cpu_table.groups; ++group) cpu_table.at(slot, group).clear();
    cpu_table.overflow[static_cast<size_t>(slot)] = false;
  }

  void TakeOverflow(AdapterTable& table, int32_t slot, int32_t* marked) override {
    assert(slot >= 0 && slot < Of(table).slots);
    *marked = Of(table).overflow[static_cast<size_t>(slot)].exchange(false);
  }

  std::unique_ptr<Batch> PrepareBatch(const BatchDescription& description) override {
    return std::make_unique<CpuBatch>(description);
  }

  void Zero(const TensorView& x) override {
    ForRows(context(), x.rows, [&](int64_t row) { std::memset(x.row(row), 0, RowBytes(x)); });
  }

  void Cast(const TensorView& from, const TensorView& to) override {
    assert(to.rows >= from.rows && to.columns >= from.columns);
    ForRows(context(), to.rows, [&](int64_t row) {
      int64_t copied = 0;
      if (row < from.rows) {
        copied = from.columns;
        std::memcpy(to.row(row), from.row(row), RowBytes(from));
      }
      std::memset(to.row(row) + copied, 0,
                  static_cast<size_t>(to.columns - copied) * sizeof(float));
    });
  }

  void Embed(const Batch& batch, const Linear& table, float factor, const TensorView& x) override {
    cpu::Embed(context(), Of(batch), Of(table), factor, x);
  }

  void RmsNorm(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
               const TensorView& y) override {
    cpu::RmsNorm(context(), Of(batch), x, weight, eps, y);
  }

  void RmsNormBackward(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    cpu::RmsNormBackward(context(), Of(batch), x, weight, eps, dy, dx);
  }

  void RmsNormGradient(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    cpu::RmsNormGradient(context(), Of(batch), x, weight, eps, dy, dx);
  }

  void RmsNormAdd(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                  const TensorView& residual, const TensorView& y) override {
    cpu::RmsNormAdd(context(), Of(batch), x, weight, eps, residual, y);
  }

  void Add(const Batch&, const TensorView& x, const TensorView& y) override {
    assert(x.rows == y.rows && x.columns == y.columns);
    ForRows(context(), x.rows,
            [&](int64_t row) { loops_.add_scaled(x.row(row), 1.0f, y.row(row), x.columns); });
  }

  void QkNormRope(const Batch& batch, const TensorView& x, const QkNorm& norm,
                  const HeadAngles& angles, const TensorView& y) override {
    cpu::QkNormRope(context(), Of(batch), x, norm, angles, y);
  }

  void QkNormBackward(const Batch& batch, const TensorView& x, const QkNorm& norm,
                      const TensorView& d) override {
    cpu::QkNormBackward(context(), Of(batch), x, norm, d);
  }

  void FillRope(std::span<const float> inverse_frequencies, float factor,
                const TensorView& table) override {
    cpu::FillRope(context(), inverse_frequencies, factor, table);
  }

  void Rope(const Batch& batch, const HeadAngles& angles, const TensorView& x) override {
    cpu::Rope(context(), Of(batch), angles, 1.0f, x);
  }

  void RopeBackward(const Batch& batch, const HeadAngles& angles, const TensorView& dx) override {
    cpu::Rope(context(), Of(batch), angles, -1.0f, dx);
  }

  void Attention(const Batch& batch, const AttentionShape& shape, const TensorView& q,
                 const TensorView& k, const TensorView& v, const TensorView& out,
                 const TensorView& lse) override {
    cpu::Attention(context(), Of(batch), shape, q, k, v, out, lse);
  }

  void AttentionBackward(const Batch& batch, const AttentionShape& shape, const TensorView& q,
                         const TensorView& k, const TensorView& v, const TensorView& out,
                         const TensorView& lse, const TensorView& dout, const TensorView& dq,
                         const TensorView& dk, const TensorView& dv) override {
    cpu::AttentionBackward(context(), Of(batch), shape, q, k, v, out, lse, dout, dq, dk, dv);
  }

  void SwiGlu(const Batch& batch, Gate gate, const TensorView& gate_up,
              const TensorView& y) override {
    cpu::SwiGlu(context(), Of(batch), gate, gate_up, y);
  }

  void SwiGluBackward(const Batch& batch, Gate gate, const TensorView& gate_up,
                      const TensorView& dy, const TensorView& dgate_up) override {
    cpu::SwiGluBackward(context(), Of(batch), gate, gate_up, dy, dgate_up);
  }

  void LoraLinear(const Batch& batch, const Linear& linear, const AdapterTable& table,
                  int32_t group, const TensorView& x, const TensorView& residual,
                  const TensorView& y, const TensorView& /*saved*/) override {
    cpu::LoraLinear(context(), Of(batch), Of(linear), Of(table), group, x, residual, y);
  }

  void LoraLinearBackward(const Batch& batch, const Linear& linear, AdapterTable& table,
                          int32_t group, const TensorView& x, const TensorView& dy,
                          const TensorView& dx, const TensorView& /*saved*/) override {
    cpu::LoraLinearBackward(context(), Of(batch), Of(linear), Of(table), group, x, dy, dx);
  }

  void LinearLoss(const Batch& batch, const TensorView& x, const Linear& head, float cap,
                  const TensorView& log_p, const TensorView& unit) override {
    cpu::LinearLoss(context(), Of(batch), x, Of(head), cap, log_p, unit);
  }

  void LossBackward(const Batch& batch, std::span<const float> weights, const TensorView& unit,
                    const TensorView& dx) override {
    cpu::LossBackward(context(), Of(batch), weights, unit, dx);
  }

  void Logits(const Batch& batch, const TensorView& x, std::span<const int32_t> rows,
              const Linear& head, float cap, const TensorView& z) override {
    cpu::Logits(context(), Of(batch), x, rows, Of(head), cap, z);
  }

  void InitializeA(uint64_t seed, int32_t layer, int32_t target, const TensorView& a) override {
    cpu::InitializeA(context(), seed, layer, target, a);
  }

  std::unique_ptr<Optimizer> MakeOptimizer(std::span<const OptimizerTensor> tensors) override {
    auto optimizer = std::make_unique<CpuOptimizer>();
    optimizer->tensors.assign(tensors.begin(), tensors.end());
    return optimizer;
  }

  void SumsOfSquares(std::span<const NormRequest> requests) override {
    for (const NormRequest& request : requests) {
      cpu::SumsOfSquares(context(), Of(*request.optimizer).tensors, request.sums);
    }
  }

  double FoldSums(std::span<const double> sums) const override { return cpu::FoldSums(sums); }

  void AdamW(std::span<const StepRequest> requests) override {
    for (const StepRequest& request : requests) {
      cpu::AdamW(context(), request.options, Of(*request.optimizer).tensors);
    }
  }

  void DropGradients(const Optimizer& optimizer) override {
    cpu::DropGradients(context(), Of(optimizer).tensors);
  }

 private:
  static size_t RowBytes(const TensorView& view) {
    return static_cast<size_t>(view.columns) * sizeof(float);
  }

  Context context() { return {pool_, loops_, workspace_}; }

  // The library takes packing buffers per thread at its first products. Taken here, they belong to
  // the process's baseline and not to a group's measured peak.
  void WarmUp() {
    constexpr int64_t kSize = 512;
    const std::vector<float> ones(kSize * kSize, 1.0f);
    std::vector<std::vector<float>> products(static_cast<size_t>(pool_.threads()) * 4);
    pool_.Run(static_cast<int64_t>(products.size()), [&](int64_t item, int) {
      std::vector<float>& product = products[static_cast<size_t>(item)];
      product.resize(kSize * kSize);
      MultiplyNT(kSize, kSize, kSize, 1.0f, ones.data(), kSize, ones.data(), kSize, 0.0f,
                 product.data(), kSize);
    });
  }

  ThreadPool pool_;
  const Loops& loops_;
  Workspace workspace_;
  std::array<std::chrono::steady_clock::time_point, kMarks> marks_;
};

}  // namespace
}  // namespace cpu

std::unique_ptr<Backend> MakeCpuBackend(int threads) {
  assert(threads >= 1 && threads <= 256);
  return std::make_unique<cpu::CpuBackend>(threads);
}

}  // namespace lorad::kernels
