#include "tests/kernels/cuda/lora/world.h"

#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda::testing {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr int64_t kSumGuard = 0x5A5A5A5A5A5A5A5A;

}  // namespace

DeviceMatrix::DeviceMatrix(int64_t rows, int64_t columns, DType dtype, int64_t spare_bytes) {
  row_bytes_ = (columns * BytesOf(dtype) + 15) / 16 * 16 + spare_bytes;
  bytes_ = 2 * kGuardBytes + rows * row_bytes_;
  LORAD_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&base_), static_cast<size_t>(bytes_)));
  view_ = {.data = base_ + kGuardBytes,
           .rows = rows,
           .columns = columns,
           .row_stride = row_bytes_ / BytesOf(dtype),
           .dtype = dtype,
           .device = Device::kCuda};
  Poison();
}

DeviceMatrix::~DeviceMatrix() { static_cast<void>(cudaFree(base_)); }

void DeviceMatrix::Poison() {
  LORAD_CUDA_CHECK(cudaMemset(base_, 0xFF, static_cast<size_t>(bytes_)));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
}

void DeviceMatrix::Write(const std::vector<float>& values) {
  std::vector<char> all = ReadAll();
  for (int64_t i = 0; i < view_.elements(); ++i) {
    const float value = Rounded(values[static_cast<size_t>(i)], view_.dtype);
    char* to = all.data() + kGuardBytes + i / view_.columns * row_bytes_ +
               i % view_.columns * BytesOf(view_.dtype);
    // The high half is the bf16.
    std::memcpy(to, reinterpret_cast<const char*>(&value) + 4 - BytesOf(view_.dtype),
                static_cast<size_t>(BytesOf(view_.dtype)));
  }
  LORAD_CUDA_CHECK(cudaMemcpy(base_, all.data(), all.size(), cudaMemcpyHostToDevice));
}

std::vector<char> DeviceMatrix::ReadAll() const {
  std::vector<char> all(static_cast<size_t>(bytes_));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  LORAD_CUDA_CHECK(cudaMemcpy(all.data(), base_, all.size(), cudaMemcpyDeviceToHost));
  return all;
}

std::vector<float> DeviceMatrix::Read() const {
  const std::vector<char> all = ReadAll();
  std::vector<float> values(static_cast<size_t>(view_.elements()));
  for (int64_t i = 0; i < view_.elements(); ++i) {
    float value = 0;
    const char* from = all.data() + kGuardBytes + i / view_.columns * row_bytes_ +
                       i % view_.columns * BytesOf(view_.dtype);
    std::memcpy(reinterpret_cast<char*>(&value) + 4 - BytesOf(view_.dtype), from,
                static_cast<size_t>(BytesOf(view_.dtype)));
    values[static_cast<size_t>(i)] = value;
  }
  return values;
}

std::vector<uint16_t> DeviceMatrix::RawRows(int64_t first, int64_t count) const {
  const std::vector<char> all = ReadAll();
  const int64_t halves = view_.columns * BytesOf(view_.dtype) / 2;
  std::vector<uint16_t> raw(static_cast<size_t>(count * halves));
  for (int64_t row = 0; row < count; ++row) {
    std::memcpy(raw.data() + row * halves, all.data() + kGuardBytes + (first + row) * row_bytes_,
                static_cast<size_t>(halves) * 2);
  }
  return raw;
}

bool DeviceMatrix::Intact() const {
  const std::vector<char> all = ReadAll();
  const int64_t used = view_.columns * BytesOf(view_.dtype);
  for (int64_t i = 0; i < bytes_; ++i) {
    const int64_t at = i - kGuardBytes;
    const bool inside = at >= 0 && at < view_.rows * row_bytes_ && at % row_bytes_ < used;
    if (!inside && all[static_cast<size_t>(i)] != static_cast<char>(0xFF)) return false;
  }
  return true;
}

DeviceSums::DeviceSums(int64_t count) : count_(count) {
  LORAD_CUDA_CHECK(cudaMalloc(reinterpret_cast<void**>(&data_),
                              static_cast<size_t>(count + 2 * kGuard) * sizeof(int64_t)));
  const std::vector<int64_t> guards(static_cast<size_t>(count + 2 * kGuard), kSumGuard);
  LORAD_CUDA_CHECK(
      cudaMemcpy(data_, guards.data(), guards.size() * sizeof(int64_t), cudaMemcpyHostToDevice));
  Clear();
}

DeviceSums::~DeviceSums() { static_cast<void>(cudaFree(data_)); }

void DeviceSums::Clear() {
  LORAD_CUDA_CHECK(cudaMemset(data(), 0, static_cast<size_t>(count_) * sizeof(int64_t)));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
}

std::vector<int64_t> DeviceSums::Read() const {
  std::vector<int64_t> values(static_cast<size_t>(count_));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  LORAD_CUDA_CHECK(
      cudaMemcpy(values.data(), data(), values.size() * sizeof(int64_t), cudaMemcpyDeviceToHost));
  return values;
}

bool DeviceSums::Intact() const {
  std::vector<int64_t> all(static_cast<size_t>(count_ + 2 * kGuard));
  LORAD_CUDA_CHECK(cudaDeviceSynchronize());
  LORAD_CUDA_CHECK(
      cudaMemcpy(all.data(), data_, all.size() * sizeof(int64_t), cudaMemcpyDeviceToHost));
  const auto is_guard = [](int64_t value) { return value == kSumGuard; };
  return std::all_of(all.begin(), all.begin() + kGuard, is_guard) &&
         std::all_of(all.end() - kGuard, all.end(), is_guard);
}

DeviceAdapter::DeviceAdapter(int64_t inputs, DType dtype, const std::vector<HostTarget>& targets)
    : host_(targets) {
  const auto matrix = [this](const std::vector<float>& values, int64_t rows, int64_t columns,
                             DType type) {
    matrices_.push_back(std::make_unique<DeviceMatrix>(rows, columns, type, 0));
    matrices_.back()->Write(values);
    return matrices_.back()->view();
  };
  for (HostTarget& host : host_) {
    LoraTarget target = host.shape;
    const int64_t rank = target.rank;
    const int64_t padded = PaddedRank(rank);
    // Masters are dense: their rows must not be padded to 16 bytes.
    target.a = static_cast<float*>(matrix(host.a, 1, rank * inputs, DType::kFloat32).data);
    target.b = static_cast<float*>(matrix(host.b, 1, target.outputs * rank, DType::kFloat32).data);
    if (dtype == DType::kBfloat16) {
      for (float& value : host.a) value = Rounded(value, dtype);
      for (float& value : host.b) value = Rounded(value, dtype);
      std::vector<float> a(static_cast<size_t>(padded * inputs), 0.0f);
      std::copy(host.a.begin(), host.a.end(), a.begin());
      std::vector<float> b(static_cast<size_t>(target.outputs * padded), 0.0f);
      for (int64_t i = 0; i < target.outputs; ++i) {
        std::copy_n(host.b.begin() + i * rank, rank, b.begin() + i * padded);
      }
      target.a_copy = matrix(a, 1, padded * inputs, dtype);
      target.a_copy.rows = padded;
      target.a_copy.columns = target.a_copy.row_stride = inputs;
      target.b_copy = matrix(b, 1, target.outputs * padded, dtype);
      target.b_copy.rows = target.outputs;
      target.b_copy.columns = target.b_copy.row_stride = padded;
    }
    sums_.push_back(std::make_unique<DeviceSums>(rank * inputs));
    target.da = sums_.back()->data();
    sums_.push_back(std::make_unique<DeviceSums>(target.outputs * rank));
    target.db = sums_.back()->data();
    targets_.push_back(target);
  }
}

void DeviceAdapter::ClearGradients() {
  for (const auto& sums : sums_) sums->Clear();
}

LoraWorld::LoraWorld(DType dtype, const Limits& limits, int64_t inputs, int64_t outputs,
                     int32_t slots, const GemmOptions& options)
    : context_(0, dtype),
      gemm_(options),
      table_(context_, gemm_, slots, 1),
      weight_(outputs, inputs, dtype, 0) {
  linear_.weight = weight_.view();
  const sizes::CudaLoraLayout layout = sizes::LayCudaLora(limits, BytesOf(dtype));
  scratch_ = std::make_unique<DeviceMatrix>(1, layout.bytes, DType::kBfloat16, 0);
  gemm_workspace_ = std::make_unique<DeviceMatrix>(1, Gemm::WorkspaceBytes(), DType::kBfloat16, 0);
  memory_ = LoraMemoryAt(scratch_->view().data, layout, limits, dtype);
  PoisonScratch();
}

void LoraWorld::PoisonScratch() {
  scratch_->Poison();
  ClearLoraMemory(memory_, context_.stream.get());
  Synchronize();
}

void LoraWorld::Synchronize() { LORAD_CUDA_CHECK(cudaDeviceSynchronize()); }

bool HaveGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

std::vector<float> RandomValues(Generator& random, int64_t count, float size) {
  std::uniform_real_distribution<float> uniform(-size, size);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = uniform(random);
  return values;
}

int64_t RandomInteger(Generator& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

std::vector<HostTarget> RandomTargets(Generator& random, int64_t inputs, int64_t outputs,
                                      int64_t rank_max, int64_t multiple, float dropout) {
  std::vector<HostTarget> targets;
  int64_t first = 0;
  for (int32_t index = 0; index < 3 && first < outputs; ++index) {
    const int64_t count =
        std::max(multiple, RandomInteger(random, 1, outputs - first) / multiple * multiple);
    const int64_t rank = RandomInteger(random, 1, rank_max);
    if (first + count <= outputs && RandomInteger(random, 0, 3) > 0) {
      HostTarget target;
      target.shape = {.first_output = first,
                      .outputs = count,
                      .rank = rank,
                      .scale = static_cast<float>(RandomInteger(random, 1, 4)) / 2,
                      .dropout = RandomInteger(random, 0, 3) > 0 ? dropout : 0,
                      .layer = static_cast<int32_t>(RandomInteger(random, 0, 40)),
                      .target = index};
      target.a = RandomValues(random, rank * inputs, 1);
      target.b = RandomValues(random, count * rank, 1);
      targets.push_back(std::move(target));
    }
    first += count;
  }
  if (targets.empty()) {
    return RandomTargets(random, inputs, outputs, rank_max, multiple, dropout);
  }
  return targets;
}

void BatchOf::Append(int64_t rows, int32_t slot, Mode mode, const DropoutKey& key) {
  segments.push_back({.first_row = tokens(),
                      .rows = rows,
                      .first_position = 0,
                      .slot = slot,
                      .mode = mode,
                      .dropout = key});
  ids.insert(ids.end(), static_cast<size_t>(rows), 1);
}

}  // namespace lorad::kernels::cuda::testing
