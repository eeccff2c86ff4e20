// The adapters resident on the device.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"

namespace lorad::kernels::cuda {

// A LoRA target's terms of the two products, but for columns and masks.
struct TargetTerms {
  LowRankTerm forward;
  LowRankTerm backward;
};

// A slot's targets in a group.
struct ResidentAdapter {
  std::vector<LoraTarget> targets;
  std::vector<TargetTerms> terms;  // one a target; where that has no copies, to be made by the plan
};

class CudaAdapterTable final : public AdapterTable {
 public:
  // Allocates a mark a slot. The product makes terms; it and the context outlive the table.
  CudaAdapterTable(Context& context, const Gemm& gemm, int32_t slots, int32_t groups);
  ~CudaAdapterTable() override;

  // See Backend.
  void SetTargets(int32_t slot, int32_t group, std::span<const LoraTarget> targets);
  void ClearSlot(int32_t slot);
  void TakeOverflow(int32_t slot, int32_t* marked);

  const ResidentAdapter& Of(int32_t slot, int32_t group) const;
  int32_t* overflow(int32_t slot) const { return overflow_ + slot; }
  int32_t slots() const { return slots_; }
  int32_t groups() const { return groups_; }
  const Gemm& gemm() const { return gemm_; }
  // Of the table in its present state: a plan made under another is stale.
  uint64_t version() const { return version_; }

 private:
  Context& context_;
  const Gemm& gemm_;
  const int32_t slots_;
  const int32_t groups_;
  std::vector<ResidentAdapter> adapters_;  // [slots * groups]
  int32_t* overflow_ = nullptr;            // device, [slots]
  uint64_t version_ = 0;                   // changes with every call, unique among tables
};

}  // namespace lorad::kernels::cuda
