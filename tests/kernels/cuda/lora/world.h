// Adapters, microbatches and weights on a GPU for the test and the benchmark of the LoRA linear.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/device/transfer.h"
#include "kernels/cuda/lora/lora_linear.h"

namespace lorad::kernels::cuda::testing {

inline float Rounded(float value, DType dtype) {
  if (dtype == DType::kFloat32) return value;
  uint32_t bits = 0;
  std::memcpy(&bits, &value, 4);
  bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000;
  std::memcpy(&value, &bits, 4);
  return value;
}

// A dense matrix [rows, columns] in device memory of its own, rows a multiple of 16 bytes apart,
// with sentinels between, before and after its rows.
class DeviceMatrix {
 public:
  DeviceMatrix(int64_t rows, int64_t columns, DType dtype, int64_t spare_bytes = 16);
  ~DeviceMatrix();
  DeviceMatrix(const DeviceMatrix&) = delete;
  DeviceMatrix& operator=(const DeviceMatrix&) = delete;

  const TensorView& view() const { return view_; }
  void Write(const std::vector<float>& values);  // rounded
  void Poison();                                 // NaN everywhere, sentinels too
  std::vector<float> Read() const;
  std::vector<uint16_t> RawRows(int64_t first, int64_t count) const;  // halves of its elements
  bool Intact() const;                                                // after Poison

 private:
  std::vector<char> ReadAll() const;

  char* base_ = nullptr;
  int64_t bytes_ = 0;
  int64_t row_bytes_ = 0;
  TensorView view_;
};

class DeviceSums {
 public:
  explicit DeviceSums(int64_t count);
  ~DeviceSums();
  DeviceSums(const DeviceSums&) = delete;
  DeviceSums& operator=(const DeviceSums&) = delete;
  int64_t* data() const { return data_ + kGuard; }
  void Clear();
  std::vector<int64_t> Read() const;
  bool Intact() const;

 private:
  static constexpr int64_t kGuard = 8;
  int64_t* data_ = nullptr;
  int64_t count_ = 0;
};

struct HostTarget {
  LoraTarget shape;  // without pointers
  std::vector<float> a;
  std::vector<float> b;
};

// A slot's targets in device memory.
class DeviceAdapter {
 public:
  DeviceAdapter(int64_t inputs, DType dtype, const std::vector<HostTarget>& targets);
  std::vector<LoraTarget> targets() const { return targets_; }
  const std::vector<HostTarget>& host() const { return host_; }  // as the products read them
  void ClearGradients();
  const DeviceSums& da(size_t target) const { return *sums_[2 * target]; }
  const DeviceSums& db(size_t target) const { return *sums_[2 * target + 1]; }

 private:
  std::vector<HostTarget> host_;
  std::vector<LoraTarget> targets_;
  std::vector<std::unique_ptr<DeviceMatrix>> matrices_;
  std::vector<std::unique_ptr<DeviceSums>> sums_;
};

// One linear group with what its operations need.
class LoraWorld {
 public:
  LoraWorld(DType dtype, const Limits& limits, int64_t inputs, int64_t outputs, int32_t slots,
            const GemmOptions& options = {});

  Context& context() { return context_; }
  Gemm& gemm() { return gemm_; }
  LoraMemory& memory() { return memory_; }
  CudaAdapterTable& table() { return table_; }
  CudaLinear& linear() { return linear_; }
  DeviceMatrix& weight() { return weight_; }
  void* gemm_workspace() { return gemm_workspace_->view().data; }
  LoraContext lora() { return {context_, gemm_, gemm_workspace(), memory_}; }
  // NaN in all scratch memory that is written before it is read.
  void PoisonScratch();
  void Synchronize();
  bool TakeOverflow(int32_t slot) {
    auto* marked = static_cast<int32_t*>(readings_->Allocate(sizeof(int32_t)));
    table_.TakeOverflow(slot, marked);
    Synchronize();
    readings_->Rewind(0);
    return *marked != 0;
  }

 private:
  Context context_;
  Gemm gemm_;
  CudaAdapterTable table_;
  DeviceMatrix weight_;
  CudaLinear linear_;
  std::unique_ptr<DeviceMatrix> scratch_;
  std::unique_ptr<DeviceMatrix> gemm_workspace_;
  LoraMemory memory_;
  const std::unique_ptr<Arena> readings_ = *MakePinnedArena(kArenaAlignment);
};

// False where there is no GPU.
bool HaveGpu();

using Generator = std::mt19937_64;
std::vector<float> RandomValues(Generator& random, int64_t count, float size);
int64_t RandomInteger(Generator& random, int64_t low, int64_t high);

std::vector<HostTarget> RandomTargets(Generator& random, int64_t inputs, int64_t outputs,
                                      int64_t rank_max, int64_t multiple, float dropout);

// A microbatch's description that owns its arrays.
struct BatchOf {
  std::vector<int32_t> ids;
  std::vector<Segment> segments;
  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  BatchDescription description() const { return {ids, segments, {}}; }
  void Append(int64_t rows, int32_t slot, Mode mode, const DropoutKey& key);
};

}  // namespace lorad::kernels::cuda::testing
