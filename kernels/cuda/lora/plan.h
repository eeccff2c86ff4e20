// The LoRA linear of a microbatch and a linear group in device memory: the tables that its kernels
// read (tables.h), laid out by layout.h, and the terms of its products (gemm.h). Also the scratch
// memory that all groups share. One thread calls all of it, as it calls the backend.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/cuda/lora/adapter_table.h"
#include "kernels/cuda/lora/layout.h"
#include "kernels/cuda/lora/tables.h"

namespace lorad::kernels::cuda {

// Scratch memory of the LoRA linear, shared by all groups.
struct LoraMemory {
  int64_t tokens = 0;          // T at most
  int64_t columns = 0;         // of `shared` at most
  int64_t own_columns = 0;     // of `own`
  int64_t masks = 0;           // targets of a group at most
  int64_t mask_row_bytes = 0;  // of the widest input
  DType dtype = DType::kBfloat16;
  void* shared = nullptr;     // [T, columns]: S, later dS, as the product reads them
  void* own = nullptr;        // [T, own_columns]: S where it is not kept
  uint8_t* mask = nullptr;    // [masks, T, mask_row_bytes]
  float4* partial = nullptr;  // LoraScratch
  int64_t partial_bytes = 0;
  int32_t* counters = nullptr;
  // Speed alone: launches overlap; so many chunks' dA and dB are added up at most before they go to
  // memory (1, 2 or kGroupChunks).
  bool overlaps = true;
  int32_t chunks_together = kGroupChunks;
  int32_t multiprocessors = 0;  // that launches should fill; 0: the device's
};

// The memory of a layout, which begins at `base`, in activations of `dtype`.
LoraMemory LoraMemoryAt(void* base, const sizes::CudaLoraLayout& layout, const Limits& limits,
                        DType dtype);
// To be called once before first use: nothing in it is read unwritten.
void ClearLoraMemory(const LoraMemory& memory, cudaStream_t stream);

using sizes::MaskRowBytes;

// The tables of one microbatch and one group. Their upload starts when they are made.
class LoraPlan {
 public:
  LoraPlan(Context& context, const LoraMemory& memory, const CudaBatch& batch,
           const CudaAdapterTable& table, int32_t group, int64_t inputs);

  // Before the first kernel that reads the tables.
  void AwaitUpload();
  // No row has an adapter: the plain product.
  bool empty() const { return layout_.empty(); }
  const LoraTables& tables() const { return tables_; }
  const LowRankTable& forward() const { return forward_; }
  const LowRankTable& backward() const { return backward_; }
  uint64_t version() const { return version_; }
  // Whether the kernels for bf16 can do it.
  bool fast() const { return layout_.fast; }
  // Of the pairs with dropout, padded; 0: none.
  int32_t masked_rank_max() const { return layout_.masked_rank_max; }

 private:
  void AddTerms(const CudaAdapterTable& table, int32_t group, int64_t inputs);
  void Upload(Context& context);

  uint64_t version_;
  const LoraLayout layout_;
  std::vector<LowRankTerm> forward_terms_;  // one a pair
  std::vector<LowRankTerm> backward_terms_;
  LoraTables tables_;
  LowRankTable forward_;
  LowRankTable backward_;
  DeviceTable memory_;
  bool uploaded_ = false;
};

// The plan of a group in this microbatch, made at first use and kept with the batch.
const LoraPlan& PlanOf(Context& context, const LoraMemory& memory, const CudaBatch& batch,
                       const CudaAdapterTable& table, int32_t group, int64_t inputs);
// Makes the plan of the group that will be used next, where there is one, so that its upload is
// over by then.
void PlanAhead(Context& context, const LoraMemory& memory, const CudaBatch& batch,
               const CudaAdapterTable& table, int32_t group);

}  // namespace lorad::kernels::cuda
