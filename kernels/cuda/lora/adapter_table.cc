#include "kernels/cuda/lora/adapter_table.h"

#include <atomic>
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/transfer.h"
#include "kernels/cuda/optimizer/optimizer.h"
#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

// Plans are told apart by the version of the table that they were made under. Each backend has a
// thread of its own.
uint64_t NextVersion() {
  static std::atomic<uint64_t> version = 0;
  return ++version;
}

void CheckTarget(const LoraTarget& target, int64_t end) {
  assert(target.first_output >= end && target.outputs > 0 && target.rank > 0);
  assert(target.a != nullptr && target.b != nullptr);
  assert(target.dropout >= 0 && target.dropout < 1);
  assert(target.layer >= 0 && target.layer < kLayersMax);
  assert(target.target >= 0 && target.target < kTargetsMax);
  if (target.a_copy.empty()) return;
  assert(target.a_copy.rows == PaddedRank(target.rank));
  assert(target.b_copy.rows == target.outputs && target.b_copy.columns == PaddedRank(target.rank));
  assert(target.a_copy.row_stride == target.a_copy.columns &&
         target.b_copy.row_stride == target.b_copy.columns);
}

}  // namespace

CudaAdapterTable::CudaAdapterTable(Context& context, const Gemm& gemm, int32_t slots,
                                   int32_t groups)
    : context_(context),
      gemm_(gemm),
      slots_(slots),
      groups_(groups),
      adapters_(static_cast<size_t>(slots) * static_cast<size_t>(groups)),
      version_(NextVersion()) {
  const size_t bytes = static_cast<size_t>(slots) * sizeof(int32_t);
  LORAD_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&overflow_), bytes));
  LORAD_CUDA_CHECK(cudaMemsetAsync(overflow_, 0, bytes, context.stream.get()));
}

CudaAdapterTable::~CudaAdapterTable() { static_cast<void>(cudaFree(overflow_)); }

void CudaAdapterTable::SetTargets(int32_t slot, int32_t group,
                                  std::span<const LoraTarget> targets) {
  assert(slot >= 0 && slot < slots_ && group >= 0 && group < groups_);
  ResidentAdapter& adapter = adapters_[static_cast<size_t>(slot * groups_ + group)];
  adapter = {};
  int64_t end = 0;
  for (const LoraTarget& target : targets) {
    CheckTarget(target, end);
    end = target.first_output + target.outputs;
    adapter.targets.push_back(target);
    TargetTerms& terms = adapter.terms.emplace_back();
    if (target.a_copy.empty()) continue;
    terms.forward = gemm_.MakeTerm(Product::kForward, target.b_copy, 0, target.first_output, {});
    terms.backward = gemm_.MakeTerm(Product::kInputGradient, target.a_copy, 0, 0, {});
  }
  version_ = NextVersion();
}

void CudaAdapterTable::ClearSlot(int32_t slot) {
  for (int32_t group = 0; group < groups_; ++group) SetTargets(slot, group, {});
  LORAD_CUDA_CHECK(cudaMemsetAsync(overflow_ + slot, 0, sizeof(*overflow_), context_.stream.get()));
}

void CudaAdapterTable::TakeOverflow(int32_t slot, int32_t* marked) {
  assert(slot >= 0 && slot < slots_);
  TakeMark(context_.stream.get(), overflow_ + slot, DeviceAddress(marked));
}

const ResidentAdapter& CudaAdapterTable::Of(int32_t slot, int32_t group) const {
  assert(slot >= 0 && slot < slots_ && group >= 0 && group < groups_);
  return adapters_[static_cast<size_t>(slot * groups_ + group)];
}

}  // namespace lorad::kernels::cuda
