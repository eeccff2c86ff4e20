#include "kernels/cuda/lora/plan.h"

#include <algorithm>
#include <cassert>
#include <map>
#include <utility>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/lora/kernels.h"

namespace lorad::kernels::cuda {
namespace {

// Shared memory of a block that the fast kernels are made for: Hopper's. Devices with less take the
// plain ones.
constexpr int kFastSharedBytes = 227 * 1024;

struct LoraPlans final : Extension {
  std::map<std::pair<const CudaAdapterTable*, int32_t>, std::unique_ptr<LoraPlan>> of;
};

LoraLayout LayoutOf(const Context& context, const LoraMemory& memory, const CudaBatch& batch,
                    const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  assert(batch.tokens() <= memory.tokens);
  std::vector<LoraSlot> slots;
  for (int32_t slot = 0; slot < table.slots(); ++slot) {
    slots.push_back({table.Of(slot, group).targets, table.overflow(slot)});
  }
  return LayOutLora({.tokens = batch.tokens(),
                     .segments = batch.segments,
                     .chunks = batch.chunks,
                     .slots = slots,
                     .inputs = inputs,
                     .dtype = memory.dtype,
                     .columns = memory.columns,
                     .own_columns = memory.own_columns,
                     .masks = memory.masks,
                     .mask = memory.mask,
                     .mask_bytes = memory.tokens * memory.mask_row_bytes,
                     .fast_kernels = context.shared_bytes >= kFastSharedBytes,
                     .hopper = context.capability == 90,
                     .multiprocessors = memory.multiprocessors > 0 ? memory.multiprocessors
                                                                   : context.multiprocessors,
                     .chunks_together = memory.chunks_together});
}

// But for its column and its mask.
TargetTerms TermsOf(const Gemm& gemm, const ResidentAdapter& adapter, size_t index,
                    int64_t inputs) {
  const LoraTarget& target = adapter.targets[index];
  if (!target.a_copy.empty()) return adapter.terms[index];
  const TensorView a = {target.a, target.rank, inputs, inputs, DType::kFloat32, Device::kCuda};
  const TensorView b = {target.b,    target.outputs,  target.rank,
                        target.rank, DType::kFloat32, Device::kCuda};
  return {.forward = gemm.MakeTerm(Product::kForward, b, 0, target.first_output, {}),
          .backward = gemm.MakeTerm(Product::kInputGradient, a, 0, 0, {})};
}

}  // namespace

LoraMemory LoraMemoryAt(void* base, const sizes::CudaLoraLayout& layout, const Limits& limits,
                        DType dtype) {
  char* const bytes = static_cast<char*>(base);
  LoraMemory memory;
  memory.tokens = limits.tokens;
  memory.columns = layout.columns;
  memory.own_columns = layout.own_columns;
  memory.masks = layout.masks;
  memory.mask_row_bytes = layout.mask_row_bytes;
  memory.dtype = dtype;
  memory.shared = bytes + layout.shared_at;
  memory.own = bytes + layout.own_at;
  memory.mask = reinterpret_cast<uint8_t*>(bytes + layout.mask_at);
  memory.partial = reinterpret_cast<float4*>(bytes + layout.partial_at);
  memory.partial_bytes = kLoraPartialBytes;
  memory.counters = reinterpret_cast<int32_t*>(bytes + layout.counters_at);
  return memory;
}

void ClearLoraMemory(const LoraMemory& memory, cudaStream_t stream) {
  const auto clear = [stream](void* data, int64_t bytes) {
    LORAD_CUDA_CHECK(cudaMemsetAsync(data, 0, static_cast<size_t>(bytes), stream));
  };
  clear(memory.mask, memory.masks * memory.tokens * memory.mask_row_bytes);
  clear(memory.counters, kLoraCounters * int64_t{sizeof(int32_t)});
}

LoraPlan::LoraPlan(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                   const CudaAdapterTable& table, int32_t group, int64_t inputs)
    : version_(table.version()),
      layout_(LayoutOf(context, memory, batch, table, group, inputs)),
      tables_(layout_.tables) {
  if (empty()) return;
  AddTerms(table, group, inputs);
  Upload(context);
}

void LoraPlan::AddTerms(const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  for (const LoraParty& party : layout_.parties) {
    for (int32_t index = 0; index < party.pairs; ++index) {
      const LoraPair& pair = layout_.pairs[static_cast<size_t>(party.first_pair + index)];
      auto [forward, backward] =
          TermsOf(table.gemm(), table.Of(party.slot, group), static_cast<size_t>(index), inputs);
      forward.first_column = pair.column;
      backward.first_column = pair.column;
      if (pair.mask != nullptr) {
        backward.mask_words = reinterpret_cast<const uint32_t*>(pair.mask);
        backward.mask_row_words = MaskRowBytes(inputs) / 4;
        backward.mask_scale = pair.keep_scale;
      }
      forward_terms_.push_back(forward);
      backward_terms_.push_back(backward);
    }
  }
}

void LoraPlan::Upload(Context& context) {
  TableLayout layout;
  const auto add = [&layout]<typename T>(const std::vector<T>& values) {
    return layout.Add<T>(static_cast<int64_t>(values.size()));
  };
  const int64_t forward = add(forward_terms_);  // first: aligned to their 128 bytes
  const int64_t backward = add(backward_terms_);
  const int64_t pairs = add(layout_.pairs);
  const int64_t units = add(layout_.units);
  const int64_t input_items = add(layout_.input_items);
  const int64_t output_items = add(layout_.output_items);
  const int64_t gradient_items = add(layout_.gradient_items);
  const int64_t output_pairs = add(layout_.output_pairs);
  const int64_t input_groups = add(layout_.input_groups);
  const int64_t output_groups = add(layout_.output_groups);
  const int64_t first = add(layout_.terms.first);
  const int64_t list = add(layout_.terms.list);
  memory_ = context.tables.Take(layout.bytes());
  const auto fill = [this]<typename T>(const std::vector<T>& values, int64_t offset) {
    std::copy(values.begin(), values.end(), memory_.Host<T>(offset));
    return static_cast<const T*>(memory_.Device<T>(offset));
  };
  tables_.pairs = fill(layout_.pairs, pairs);
  tables_.units = fill(layout_.units, units);
  tables_.input_items = fill(layout_.input_items, input_items);
  tables_.output_items = fill(layout_.output_items, output_items);
  tables_.gradient_items = fill(layout_.gradient_items, gradient_items);
  tables_.output_pairs = fill(layout_.output_pairs, output_pairs);
  tables_.input_groups = fill(layout_.input_groups, input_groups);
  tables_.output_groups = fill(layout_.output_groups, output_groups);
  forward_ = {.terms = fill(forward_terms_, forward),
              .first = fill(layout_.terms.first, first),
              .list = fill(layout_.terms.list, list),
              .count = static_cast<int32_t>(forward_terms_.size())};
  backward_ = forward_;
  backward_.terms = fill(backward_terms_, backward);
  memory_.StartUpload(layout.bytes());
}

void LoraPlan::AwaitUpload() {
  if (!uploaded_ && !empty()) memory_.AwaitUpload();
  uploaded_ = true;
}

namespace {

LoraPlan& MadePlan(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                   const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  if (batch.lora == nullptr) batch.lora = std::make_unique<LoraPlans>();
  std::unique_ptr<LoraPlan>& plan = static_cast<LoraPlans&>(*batch.lora).of[{&table, group}];
  if (plan == nullptr || plan->version() != table.version()) {
    plan = std::make_unique<LoraPlan>(context, memory, batch, table, group, inputs);
  }
  return *plan;
}

// Inputs of a group as its adapters' copies tell them; 0: none does.
int64_t InputsOf(const CudaBatch& batch, const CudaAdapterTable& table, int32_t group) {
  for (const Segment& segment : batch.segments) {
    if (segment.slot < 0) continue;
    for (const LoraTarget& target : table.Of(segment.slot, group).targets) {
      if (!target.a_copy.empty()) return target.a_copy.columns;
    }
  }
  return 0;
}

}  // namespace

const LoraPlan& PlanOf(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                       const CudaAdapterTable& table, int32_t group, int64_t inputs) {
  LoraPlan& plan = MadePlan(context, memory, batch, table, group, inputs);
  assert(plan.empty() || plan.tables().inputs == inputs);
  plan.AwaitUpload();
  return plan;
}

void PlanAhead(Context& context, const LoraMemory& memory, const CudaBatch& batch,
               const CudaAdapterTable& table, int32_t group) {
  if (group >= table.groups()) return;
  const int64_t inputs = InputsOf(batch, table, group);
  if (inputs > 0) MadePlan(context, memory, batch, table, group, inputs);
}

}  // namespace lorad::kernels::cuda
