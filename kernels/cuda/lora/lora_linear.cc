#include "kernels/cuda/lora/lora_linear.h"

#include <cassert>

#include "kernels/cuda/lora/kernels.h"
#include "kernels/cuda/rowwise/rope.h"

namespace lorad::kernels::cuda {
namespace {

TensorView View(void* data, int64_t rows, int64_t columns, DType dtype) {
  return {.data = data,
          .rows = rows,
          .columns = columns,
          .row_stride = columns,
          .dtype = dtype,
          .device = Device::kCuda};
}

// S and dS as the product reads them, dense.
TensorView Shared(const LoraMemory& memory, const LoraPlan& plan, int64_t tokens) {
  return View(memory.shared, tokens, plan.tables().columns, memory.dtype);
}

TensorView Own(const LoraMemory& memory, int64_t tokens) {
  return View(memory.own, tokens, memory.own_columns, memory.dtype);
}

LoraScratch Scratch(const LoraMemory& memory) {
  return {.partial = memory.partial,
          .partial_bytes = memory.partial_bytes,
          .counters = memory.counters};
}

// Whether the launch after a skinny product may overlap with that one's last blocks.
bool MayOverlap(const LoraContext& lora, const LoraPlan& plan) {
  return lora.memory.overlaps && plan.fast() && lora.gemm.own();
}

void Project(const LoraContext& lora, const LoraPlan& plan, const TensorView& x,
             const TensorView& own, const TensorView& shared) {
  const cudaStream_t stream = lora.context.stream.get();
  if (plan.fast()) {
    ProjectInput(plan.tables(), x, own, shared, Scratch(lora.memory), stream);
  } else {
    PlainProjectInput(plan.tables(), x, own, shared, stream);
  }
}

}  // namespace

void LoraLinear(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                const CudaAdapterTable& table, int32_t group, const TensorView& x,
                const TensorView& residual, const TensorView& y, const TensorView& saved,
                const TensorView& gated, const GemmRope& rope, Gate gate) {
  assert(gated.empty() || FusesSwiGlu(lora, linear));
  assert(rope.empty() || FusesRope(lora, linear, rope));
  GemmArguments product = {.product = Product::kForward,
                           .x = x,
                           .weight = linear.weight,
                           .bias = linear.bias,
                           .residual = residual,
                           .y = y,
                           .gated = gated,
                           .gate = gate,
                           .rope = rope};
  const LoraPlan& plan =
      PlanOf(lora.context, lora.memory, batch, table, group, linear.weight.columns);
  if (!plan.empty()) {
    product.coefficients = Shared(lora.memory, plan, batch.tokens());
    product.terms = plan.forward();
    Project(lora, plan, x, saved, product.coefficients);
    product.awaits_late = MayOverlap(lora, plan);
  }
  lora.gemm.Run(product, lora.gemm_workspace, lora.context.stream.get());
  PlanAhead(lora.context, lora.memory, batch, table, group + 1);
}

void LoraLinearBackward(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                        CudaAdapterTable& table, int32_t group, const TensorView& x,
                        const TensorView& dy, const TensorView& dx, const TensorView& saved,
                        const TensorView& gate_up, Gate gate) {
  assert(gate_up.empty() || FusesSwiGluBackward(lora, batch, linear, table, group));
  const cudaStream_t stream = lora.context.stream.get();
  GemmArguments product = {.product = Product::kInputGradient,
                           .x = dy,
                           .weight = linear.weight,
                           .y = dx,
                           .gate_up = gate_up,
                           .gate = gate};
  const LoraPlan& plan =
      PlanOf(lora.context, lora.memory, batch, table, group, linear.weight.columns);
  if (!plan.empty()) {
    const bool train = plan.tables().any_train != 0;
    const TensorView own = saved.empty() ? Own(lora.memory, batch.tokens()) : saved;
    const TensorView ds = Shared(lora.memory, plan, batch.tokens());
    const int64_t mask_row_bytes = MaskRowBytes(linear.weight.columns);
    if (train && saved.empty()) Project(lora, plan, x, own, {});
    if (plan.fast()) {
      ProjectOutput(plan.tables(), dy, own, ds, Scratch(lora.memory), stream);
      GradientA(plan.tables(), x, ds, mask_row_bytes, MayOverlap(lora, plan), stream);
      product.awaits_late = MayOverlap(lora, plan);
    } else {
      PlainProjectOutput(plan.tables(), dy, own, ds, stream);
      PlainGradientA(plan.tables(), x, ds, mask_row_bytes, stream);
    }
    product.coefficients = ds;
    product.terms = plan.backward();
  }
  if (!dx.empty()) lora.gemm.Run(product, lora.gemm_workspace, stream);
}

GemmRope RopeOf(const CudaBatch& batch, const TensorView& angles, int64_t rotated) {
  return {.tables = RopeOf(batch.tables, angles), .columns = static_cast<int32_t>(rotated)};
}

bool FusesRope(const LoraContext& lora, const CudaLinear& linear, const GemmRope& rope) {
  return lora.gemm.own() && linear.weight.dtype == DType::kBfloat16 &&
         FitsRope(rope, linear.weight.rows);
}

bool FusesSwiGlu(const LoraContext& lora, const CudaLinear& linear) {
  return lora.gemm.own() && linear.weight.dtype == DType::kBfloat16 && !linear.has_bias &&
         linear.weight.rows % 16 == 0;
}

bool FusesSwiGluBackward(const LoraContext& lora, const CudaBatch& batch, const CudaLinear& linear,
                         const CudaAdapterTable& table, int32_t group) {
  const int64_t inputs = linear.weight.columns;
  if (!lora.gemm.own() || linear.weight.dtype != DType::kBfloat16 || inputs % 8 != 0) return false;
  const LoraPlan& plan = PlanOf(lora.context, lora.memory, batch, table, group, inputs);
  return plan.masked_rank_max() <= kUnitRanks;
}

}  // namespace lorad::kernels::cuda
