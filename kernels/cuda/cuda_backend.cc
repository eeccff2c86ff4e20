#include "kernels/cuda/cuda_backend.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/device/copies.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/device_clock.h"
#include "kernels/cuda/device/transfer.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/cuda/lora/lora_linear.h"
#include "kernels/cuda/lora/plan.h"
#include "kernels/cuda/loss/linear_loss.h"
#include "kernels/cuda/memory.h"
#include "kernels/cuda/optimizer/optimizer.h"
#include "kernels/cuda/optimizer/tables.h"
#include "kernels/cuda/rowwise/rowwise.h"

namespace lorad::kernels {
namespace cuda {
namespace {

// Raised whenever an own operation's order of sums or formula changes, for then bits do.
constexpr int kRevision = 5;

struct CudaOptimizer final : Optimizer {
  CudaOptimizer(TablePool& pool, std::span<const OptimizerTensor> tensors)
      : memory(pool, tensors) {}

  const OptimizerMemory memory;
};

class CudaBackend final : public Backend {
 public:
  CudaBackend(int device_index, DType activation)
      : context_(device_index, activation),
        transfer_(context_),
        gemm_(GemmOptions()),
        attention_(context_),
        loss_(context_, gemm_) {}

  // "", or why it cannot run, with the remedy.
  std::string Problem() const { return attention_.Problem(); }

  // What is enqueued may still read tables that the members own.
  ~CudaBackend() override { static_cast<void>(cudaStreamSynchronize(context_.stream.get())); }

  // ---- the device ----

  Device device() const override { return Device::kCuda; }
  DType activation_dtype() const override { return context_.activation; }

  std::string NumericsId() const override {
    const char* type = context_.activation == DType::kBfloat16 ? "bf16" : "fp32";
    return absl::StrCat("cuda/sm_", context_.capability, "/", type, "/", gemm_.Id(), "/",
                        attention_.Id(), "/", kRevision);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) override {
    return MakeDeviceArena(context(), bytes);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) override {
    context();
    return MakePinnedArena(bytes);
  }

  void ReserveWorkspace(const Limits& limits, Arena& arena) override {
    assert(limits.features <= kDropoutFeaturesMax);
    const WorkspaceMemory memory =
        TakeWorkspace(limits, context_.activation, context_.multiprocessors, arena);
    if (arena.counting()) return;
    lora_memory_ = LoraMemoryAt(memory.base, memory.layout.lora, limits, context_.activation);
    ClearLoraMemory(lora_memory_, stream());
    char* scratch = memory.base + memory.layout.scratch_at;
    const uintptr_t past = reinterpret_cast<uintptr_t>(scratch) % sizes::kCudaScratchAlignment;
    scratch += (sizes::kCudaScratchAlignment - past) % sizes::kCudaScratchAlignment;
    gemm_workspace_ = scratch;
    attention_.SetWorkspace(scratch, memory.layout.scratch_bytes, limits);
    loss_.SetWorkspace(scratch, memory.layout.scratch_bytes);
  }

  void Synchronize() override { LORAD_CUDA_CHECK(cudaStreamSynchronize(stream())); }

  void Mark(int mark) override {
    clock_.KeepNear(stream());
    marks_.at(static_cast<size_t>(mark)).Record(stream());
    is_set_.at(static_cast<size_t>(mark)) = true;
  }
  void WaitFor(int mark) override {
    context();
    if (!is_set_.at(static_cast<size_t>(mark))) return;
    marks_.at(static_cast<size_t>(mark)).Wait();
    clock_.HasReached(marks_.at(static_cast<size_t>(mark)));
  }
  double MsBetween(int from, int to) override {
    context();
    return marks_.at(static_cast<size_t>(to)).MsSince(marks_.at(static_cast<size_t>(from)));
  }
  std::chrono::steady_clock::time_point MomentOf(int mark) override {
    context();
    return clock_.MomentOf(marks_.at(static_cast<size_t>(mark)));
  }

  void CopyToDevice(const float* host, const TensorView& device) override {
    context();
    transfer_.ToDevice(host, device);
  }

  void CopyToHost(const TensorView& device, float* host) override {
    context();
    transfer_.ToHost(device, host);
  }

  void ReadBack(const TensorView& device, float* host) override {
    context();
    transfer_.ReadBack(device, host);
  }

  std::unique_ptr<DeviceCopies> MakeCopies() override { return MakeCudaCopies(context()); }

  // ---- handles ----

  std::unique_ptr<Linear> MakeLinear(int64_t outputs, int64_t inputs, bool has_bias,
                                     Arena& arena) override {
    auto linear = std::make_unique<CudaLinear>();
    linear->has_bias = has_bias;
    const LinearMemory memory = TakeLinear(outputs, inputs, has_bias, context_.activation, arena);
    linear->weight = memory.weight;
    linear->bias = memory.bias;
    return linear;
  }

  float* MapRows(Linear& linear, int64_t first, int64_t count) override {
    context();
    return mapping_.Open(Of(linear).weight.Rows(first, count));
  }

  float* MapBias(Linear& linear, int64_t first, int64_t count) override {
    assert(Of(linear).has_bias);
    context();
    return mapping_.Open(Of(linear).bias.Columns(first, count));
  }

  void Unmap(Linear&) override {
    context();
    mapping_.Close(transfer_);
  }

  std::unique_ptr<AdapterTable> MakeAdapterTable(int32_t slots, int32_t groups) override {
    return std::make_unique<CudaAdapterTable>(context(), gemm_, slots, groups);
  }

  void SetTargets(AdapterTable& table, int32_t slot, int32_t group,
                  std::span<const LoraTarget> targets) override {
    context();
    Of(table).SetTargets(slot, group, targets);
  }

  void ClearSlot(AdapterTable& table, int32_t slot) override {
    context();
    Of(table).ClearSlot(slot);
  }

  void TakeOverflow(AdapterTable& table, int32_t slot, int32_t* marked) override {
    context();
    Of(table).TakeOverflow(slot, marked);
  }

  std::unique_ptr<Batch> PrepareBatch(const BatchDescription& description) override {
    mapping_.Release();  // the model is loaded
    auto batch = std::make_unique<CudaBatch>(context(), description);
    attention_.Prepare(*batch);
    loss_.Prepare(*batch);
    return batch;
  }

  // ---- operations ----

  void Zero(const TensorView& x) override { cuda::Zero(stream(), x); }

  void Cast(const TensorView& from, const TensorView& to) override {
    cuda::Cast(stream(), from, to);
  }

  void Embed(const Batch& batch, const Linear& table, float factor, const TensorView& x) override {
    cuda::Embed(stream(), Of(batch).tables, Of(table).weight, factor, x);
  }

  void RmsNorm(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
               const TensorView& y) override {
    assert(x.rows == Of(batch).tokens());
    cuda::RmsNorm(stream(), x, weight, eps, y);
  }

  void RmsNormBackward(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    assert(x.rows == Of(batch).tokens());
    cuda::RmsNormBackward(stream(), x, weight, eps, dy, dx);
  }

  void RmsNormGradient(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                       const TensorView& dy, const TensorView& dx) override {
    assert(x.rows == Of(batch).tokens());
    cuda::RmsNormGradient(stream(), x, weight, eps, dy, dx);
  }

  void RmsNormAdd(const Batch& batch, const TensorView& x, const TensorView& weight, float eps,
                  const TensorView& residual, const TensorView& y) override {
    assert(x.rows == Of(batch).tokens());
    cuda::RmsNormAdd(stream(), x, weight, eps, residual, y);
  }

  void Add(const Batch& batch, const TensorView& x, const TensorView& y) override {
    assert(x.rows == Of(batch).tokens());
    cuda::Add(stream(), x, y);
  }

  void QkNormRope(const Batch& batch, const TensorView& x, const QkNorm& norm,
                  const HeadAngles& angles, const TensorView& y) override {
    cuda::QkNormRope(stream(), Of(batch).tables, x, norm, angles, y);
  }

  void QkNormBackward(const Batch& batch, const TensorView& x, const QkNorm& norm,
                      const TensorView& d) override {
    assert(x.rows == Of(batch).tokens());
    cuda::QkNormBackward(stream(), x, norm, d);
  }

  void FillRope(std::span<const float> inverse_frequencies, float factor,
                const TensorView& table) override {
    assert(table.columns == 2 * static_cast<int64_t>(inverse_frequencies.size()));
    const DeviceTable frequencies = Uploaded(inverse_frequencies);
    cuda::FillRope(stream(), frequencies.Device<float>(0), factor, table);
  }

  void Rope(const Batch& batch, const HeadAngles& angles, const TensorView& x) override {
    cuda::Rope(stream(), Of(batch).tables, angles, 1.0f, x);
  }

  void RopeBackward(const Batch& batch, const HeadAngles& angles, const TensorView& dx) override {
    cuda::Rope(stream(), Of(batch).tables, angles, -1.0f, dx);
  }

  void Attention(const Batch& batch, const AttentionShape& shape, const TensorView& q,
                 const TensorView& k, const TensorView& v, const TensorView& out,
                 const TensorView& lse) override {
    context();
    attention_.Forward(Of(batch), shape, q, k, v, out, lse);
  }

  void AttentionBackward(const Batch& batch, const AttentionShape& shape, const TensorView& q,
                         const TensorView& k, const TensorView& v, const TensorView& out,
                         const TensorView& lse, const TensorView& dout, const TensorView& dq,
                         const TensorView& dk, const TensorView& dv) override {
    context();
    attention_.Backward(Of(batch), shape, q, k, v, out, lse, dout, dq, dk, dv);
  }

  void AttentionRopeBackward(const Batch& batch, const AttentionShape& shape,
                             const HeadAngles& angles, const TensorView& q, const TensorView& k,
                             const TensorView& v, const TensorView& out, const TensorView& lse,
                             const TensorView& dout, const TensorView& dq, const TensorView& dk,
                             const TensorView& dv) override {
    context();
    attention_.Backward(Of(batch), shape, q, k, v, out, lse, dout, dq, dk, dv, angles);
  }

  void SwiGlu(const Batch& batch, Gate gate, const TensorView& gate_up,
              const TensorView& y) override {
    assert(y.rows == Of(batch).tokens());
    cuda::SwiGlu(stream(), gate_up, y, gate);
  }

  void SwiGluBackward(const Batch& batch, Gate gate, const TensorView& gate_up,
                      const TensorView& dy, const TensorView& dgate_up) override {
    assert(dy.rows == Of(batch).tokens());
    cuda::SwiGluBackward(stream(), gate_up, dy, dgate_up, gate);
  }

  void LoraLinear(const Batch& batch, const Linear& linear, const AdapterTable& table,
                  int32_t group, const TensorView& x, const TensorView& residual,
                  const TensorView& y, const TensorView& saved) override {
    cuda::LoraLinear(lora(), Of(batch), Of(linear), Of(table), group, x, residual, y, saved);
  }

  void LoraLinearBackward(const Batch& batch, const Linear& linear, AdapterTable& table,
                          int32_t group, const TensorView& x, const TensorView& dy,
                          const TensorView& dx, const TensorView& saved) override {
    cuda::LoraLinearBackward(lora(), Of(batch), Of(linear), Of(table), group, x, dy, dx, saved);
  }

  void LoraLinearSwiGlu(const Batch& batch, const Linear& linear, const AdapterTable& table,
                        int32_t group, Gate gate, const TensorView& x, const TensorView& y,
                        const TensorView& gated, const TensorView& saved) override {
    if (!FusesSwiGlu(lora(), Of(linear))) {
      return Backend::LoraLinearSwiGlu(batch, linear, table, group, gate, x, y, gated, saved);
    }
    cuda::LoraLinear(lora(), Of(batch), Of(linear), Of(table), group, x, {}, y, saved, gated, {},
                     gate);
  }

  void LoraLinearRope(const Batch& batch, const Linear& linear, const AdapterTable& table,
                      int32_t group, const TensorView& x, const HeadAngles& angles, int64_t rotated,
                      const TensorView& y, const TensorView& saved) override {
    const GemmRope rope = RopeOf(Of(batch), angles.table, rotated);
    if (!angles.whole() || !FusesRope(lora(), Of(linear), rope)) {
      return Backend::LoraLinearRope(batch, linear, table, group, x, angles, rotated, y, saved);
    }
    cuda::LoraLinear(lora(), Of(batch), Of(linear), Of(table), group, x, {}, y, saved, {}, rope);
  }

  void LoraLinearSwiGluBackward(const Batch& batch, const Linear& linear, AdapterTable& table,
                                int32_t group, Gate gate, const TensorView& gate_up,
                                const TensorView& y, const TensorView& dy, const TensorView& dx,
                                const TensorView& dgate_up, const TensorView& saved) override {
    assert(gate_up.columns == 2 * y.columns && dgate_up.columns == gate_up.columns);
    if (!FusesSwiGluBackward(lora(), Of(batch), Of(linear), Of(table), group)) {
      return Backend::LoraLinearSwiGluBackward(batch, linear, table, group, gate, gate_up, y, dy,
                                               dx, dgate_up, saved);
    }
    cuda::LoraLinearBackward(lora(), Of(batch), Of(linear), Of(table), group, y, dy, dgate_up,
                             saved, gate_up, gate);
  }

  void LinearLoss(const Batch& batch, const TensorView& x, const Linear& head, float cap,
                  const TensorView& log_p, const TensorView& unit) override {
    context();
    loss_.Run(Of(batch), x, Of(head), log_p, unit, cap);
  }

  void LossBackward(const Batch& batch, std::span<const float> weights, const TensorView& unit,
                    const TensorView& dx) override {
    assert(weights.size() == Of(batch).loss_rows.size());
    const DeviceTable table = Uploaded(weights);
    cuda::LossBackward(stream(), Of(batch).tables, table.Device<float>(0), unit, dx);
  }

  void Logits(const Batch& batch, const TensorView& x, std::span<const int32_t> rows,
              const Linear& head, float cap, const TensorView& z) override {
    if (rows.empty()) return;
    assert(x.rows == Of(batch).tokens() && z.rows == static_cast<int64_t>(rows.size()));
    const DeviceTable table = Uploaded(rows);
    loss_.Logits(x, table.Device<int32_t>(0), Of(head), cap, z);
  }

  // ---- slots and the optimizer ----

  void InitializeA(uint64_t seed, int32_t layer, int32_t target, const TensorView& a) override {
    cuda::InitializeA(stream(), seed, layer, target, a);
  }

  std::unique_ptr<Optimizer> MakeOptimizer(std::span<const OptimizerTensor> tensors) override {
    return std::make_unique<CudaOptimizer>(context().tables, tensors);
  }

  void SumsOfSquares(std::span<const NormRequest> requests) override {
    std::vector<SquaresJob> jobs;
    for (const NormRequest& request : requests) {
      jobs.push_back({Of(*request.optimizer).memory.table, DeviceAddress(request.sums)});
    }
    cuda::SumsOfSquares(stream(), jobs);
  }

  double FoldSums(std::span<const double> sums) const override { return cuda::FoldSums(sums); }

  void AdamW(std::span<const StepRequest> requests) override {
    std::vector<AdamWJob> jobs;
    for (const StepRequest& request : requests) {
      jobs.push_back(JobOf(Of(*request.optimizer).memory.table, request.options));
    }
    cuda::AdamW(stream(), jobs);
  }

  void DropGradients(const Optimizer& optimizer) override {
    cuda::DropGradients(stream(), Of(optimizer).memory.table);
  }

 private:
  // Whatever asks the runtime for something asks for this first: the thread that calls may be another
  // than the one that made the backend, and a new thread is on the first GPU.
  Context& context() {
    LORAD_CUDA_CHECK(cudaSetDevice(context_.device));
    return context_;
  }
  cudaStream_t stream() { return context().stream.get(); }
  LoraContext lora() { return {context(), gemm_, gemm_workspace_, lora_memory_}; }

  static const CudaAdapterTable& Of(const AdapterTable& table) {
    return static_cast<const CudaAdapterTable&>(table);
  }
  static CudaAdapterTable& Of(AdapterTable& table) { return static_cast<CudaAdapterTable&>(table); }
  static const CudaBatch& Of(const Batch& batch) { return cuda::Of(batch); }
  static const CudaLinear& Of(const Linear& linear) { return cuda::Of(linear); }
  static const CudaOptimizer& Of(const Optimizer& optimizer) {
    return static_cast<const CudaOptimizer&>(optimizer);
  }

  // To be kept until what reads it is enqueued.
  template <typename T>
  DeviceTable Uploaded(std::span<const T> values) {
    const int64_t bytes = static_cast<int64_t>(values.size_bytes());
    DeviceTable table = context().tables.Take(bytes);
    std::copy(values.begin(), values.end(), table.Host<T>(0));
    table.Upload(bytes);
    return table;
  }

  Context context_;
  Transfer transfer_;
  Mapping mapping_;
  Gemm gemm_;
  AttentionOperation attention_;
  LinearLossOperation loss_;
  LoraMemory lora_memory_;
  void* gemm_workspace_ = nullptr;
  std::array<TimedEvent, kMarks> marks_;
  std::array<bool, kMarks> is_set_ = {};
  DeviceClock clock_;
};

}  // namespace
}  // namespace cuda

absl::StatusOr<std::unique_ptr<Backend>> MakeCudaBackend(int device_index, DType activation) {
  const absl::StatusOr<DeviceFacts> facts = ProbeCudaDevice(device_index);
  if (!facts.ok()) return facts.status();
  auto backend = std::make_unique<cuda::CudaBackend>(device_index, activation);
  if (const std::string problem = backend->Problem(); !problem.empty()) {
    return absl::FailedPreconditionError(problem);
  }
  return backend;
}

}  // namespace lorad::kernels
