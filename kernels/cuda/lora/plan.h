// What the host makes of the LoRA linear for each microbatch and linear group: the tables that its
// kernels read (tables.h, gemm.h).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/cuda/lora/adapter_table.h"
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
  bool empty() const { return pairs_.empty(); }
  const LoraTables& tables() const { return tables_; }
  const LowRankTable& forward() const { return forward_; }
  const LowRankTable& backward() const { return backward_; }
  uint64_t version() const { return version_; }
  // Whether the kernels for bf16 can do it.
  bool fast() const { return fast_; }
  // Of the pairs with dropout, padded; 0: none.
  int32_t masked_rank_max() const { return masked_rank_max_; }

 private:
  struct Party {
    int32_t slot = -1;
    bool drops = false;
    std::vector<int64_t> tiles;  // of rows, ascending
    int32_t first_pair = 0;
    int32_t pairs = 0;
    int32_t first_unit = 0;
    int32_t units = 0;
    int32_t column = 0;
    int32_t width = 0;
  };

  void FindParties(const CudaBatch& batch, const CudaAdapterTable& table, int32_t group);
  void PlaceParties(int64_t tiles, int64_t columns_max);
  void AddPairs(const LoraMemory& memory, const CudaAdapterTable& table, int32_t group,
                int64_t inputs);
  void AddPair(const LoraPair& pair);
  void AddTerms(const Gemm& gemm, const ResidentTarget& resident, const LoraPair& pair,
                int64_t inputs);
  void AddItems(const CudaBatch& batch);
  void TakeTileGroups(const Context& context, const LoraMemory& memory);
  void AddGradientItems(int32_t chunks_together);
  void AddOutputPairs(int32_t chunks_together);
  void AddLists(int64_t tiles);
  void Upload(Context& context);

  uint64_t version_;
  bool fast_ = true;
  int32_t masked_rank_max_ = 0;
  std::vector<Party> parties_;
  std::vector<int32_t> party_of_segment_;  // -1: none
  std::vector<LoraPair> pairs_;
  std::vector<LoraUnit> units_;
  std::vector<LoraInputItem> input_items_;
  std::vector<LoraOutputItem> output_items_;
  std::vector<LoraGradientItem> gradient_items_;
  std::vector<LoraOutputPair> output_pairs_;
  std::vector<LoraTileGroup> input_groups_;
  std::vector<LoraTileGroup> output_groups_;
  std::vector<LowRankTerm> forward_terms_;  // one a pair
  std::vector<LowRankTerm> backward_terms_;
  std::vector<int32_t> first_;  // [tiles + 1]
  std::vector<int32_t> list_;
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
