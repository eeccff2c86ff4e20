#include "kernels/cuda/device/transfer.h"

#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

// One buffer: long enough to hide the start of a copy, and for a row of any tensor of a model.
constexpr int64_t kBufferBytes = int64_t{8} << 20;

// Of the host's memory, where it has them.
constexpr int64_t kLargePage = int64_t{2} << 20;

double Gibibytes(uint64_t bytes) { return static_cast<double>(bytes) / 0x1p30; }

// Copies of weights are shared out to threads: one rounds a billion values a second, a bus takes
// ten.
constexpr int64_t kThreadsMax = 8;
constexpr int64_t kThreadElements = int64_t{1} << 18;  // at least, of one thread

// work(first, count) on parts of [0, count), each on a thread of its own where that pays.
template <typename Work>
void InParts(int64_t count, Work&& work) {
  const int64_t cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t parts = std::min({kThreadsMax, cores, count / kThreadElements});
  if (parts <= 1) return work(0, count);
  std::vector<std::jthread> threads;
  for (int64_t part = 0; part < parts; ++part) {
    const int64_t first = count * part / parts;
    threads.emplace_back(work, first, count * (part + 1) / parts - first);
  }
}

// To the nearest, ties to even; NaN stays NaN.
uint16_t RoundToBfloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const uint32_t rounded = (bits + 0x7FFFu + (bits >> 16 & 1u)) >> 16;
  const uint32_t quiet = bits >> 16 | 0x40u;
  return static_cast<uint16_t>((bits & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

void Round(const float* from, int64_t count, DType dtype, void* to) {
  InParts(count, [=](int64_t first, int64_t part) {
    if (dtype == DType::kFloat32) {
      std::copy_n(from + first, part, static_cast<float*>(to) + first);
    } else {
      std::transform(from + first, from + first + part, static_cast<uint16_t*>(to) + first,
                     RoundToBfloat16);
    }
  });
}

void Widen(const void* from, int64_t count, DType dtype, float* to) {
  if (dtype == DType::kFloat32) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
    return;
  }
  const auto* values = static_cast<const uint16_t*>(from);
  std::transform(values, values + count, to, [](uint16_t value) {
    return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
  });
}

bool IsPinned(const void* host) {
  cudaPointerAttributes attributes = {};
  LORAD_CUDA_CHECK(cudaPointerGetAttributes(&attributes, host));
  return attributes.type == cudaMemoryTypeHost;
}

// A dense view as a matrix of one column, so that no row is longer than a buffer.
TensorView Flat(const TensorView& view) {
  if (view.row_stride != view.columns && view.rows != 1) return view;
  TensorView flat = view;
  flat.rows = view.elements();
  flat.columns = 1;
  flat.row_stride = 1;
  return flat;
}

void CopyRows(void* to, int64_t to_pitch, const void* from, int64_t from_pitch, int64_t row_bytes,
              int64_t rows, cudaMemcpyKind kind, cudaStream_t stream) {
  if (to_pitch == row_bytes && from_pitch == row_bytes) {
    LORAD_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<size_t>(row_bytes * rows), kind, stream));
    return;
  }
  LORAD_CUDA_CHECK(
      cudaMemcpy2DAsync(to, static_cast<size_t>(to_pitch), from, static_cast<size_t>(from_pitch),
                        static_cast<size_t>(row_bytes), static_cast<size_t>(rows), kind, stream));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Arena>> MakeDeviceArena(const Context& context, int64_t bytes) {
  assert(bytes >= 0);
  void* base = nullptr;
  const size_t size = static_cast<size_t>(std::max(bytes, kArenaAlignment));
  const cudaError_t error = cudaMalloc(&base, size);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // it is not sticky, and handled here
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    LORAD_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    return absl::ResourceExhaustedError(absl::StrFormat(
        "GPU %d has %.2f of its %.2f GiB free, %.2f GiB were asked for; end other processes on it "
        "(nvidia-smi lists them), or lower the worker's memory budget",
        context.device, Gibibytes(free_bytes), Gibibytes(total_bytes), Gibibytes(size)));
  }
  LORAD_CUDA_CHECK(error);
  LORAD_CUDA_CHECK(cudaMemsetAsync(base, 0, size, context.stream.get()));
  return std::make_unique<Arena>(Device::kCuda, base, static_cast<int64_t>(size), [base] {
    // Waits for what is enqueued. At a process's end the driver may be gone before.
    static_cast<void>(cudaFree(base));
  });
}

absl::StatusOr<std::unique_ptr<Arena>> MakePinnedArena(int64_t bytes) {
  assert(bytes >= 0);
  void* base = nullptr;
  const size_t size = static_cast<size_t>(std::max(bytes, kArenaAlignment));
  const cudaError_t error = cudaMallocHost(&base, size);
  if (error == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());
    return absl::ResourceExhaustedError(absl::StrFormat(
        "cannot pin %.2f GiB of the host's memory for copies from the GPU; free memory, or raise "
        "the limit of locked memory (ulimit -l)",
        Gibibytes(size)));
  }
  LORAD_CUDA_CHECK(error);
  std::memset(base, 0, size);
  return std::make_unique<Arena>(Device::kCpu, base, static_cast<int64_t>(size),
                                 [base] { static_cast<void>(cudaFreeHost(base)); });
}

Transfer::Transfer(Context& context) : context_(context) {
  for (void*& buffer : buffers_) {
    LORAD_CUDA_CHECK(cudaMallocHost(&buffer, static_cast<size_t>(kBufferBytes)));
  }
}

Transfer::~Transfer() {
  for (void* buffer : buffers_) static_cast<void>(cudaFreeHost(buffer));
}

int64_t Transfer::RowsAtOnce(const TensorView& view) const {
  const int64_t row_bytes = view.columns * BytesOf(view.dtype);
  assert(row_bytes <= kBufferBytes);
  return kBufferBytes / row_bytes;
}

void Transfer::ToDevice(const float* host, const TensorView& view) {
  const TensorView device = Flat(view);
  if (device.elements() == 0) return;
  const int64_t size = BytesOf(device.dtype);
  const int64_t row_bytes = device.columns * size;
  const int64_t step = RowsAtOnce(device);
  for (int64_t first = 0; first < device.rows; first += step) {
    const int64_t rows = std::min(step, device.rows - first);
    void* buffer = buffers_[static_cast<size_t>(next_)];
    Event& copied = copied_[static_cast<size_t>(next_)];
    next_ = (next_ + 1) % kBuffers;
    copied.Wait();
    Round(host + first * device.columns, rows * device.columns, device.dtype, buffer);
    CopyRows(device.Rows(first, rows).data, device.row_stride * size, buffer, row_bytes, row_bytes,
             rows, cudaMemcpyHostToDevice, context_.stream.get());
    copied.Record(context_.stream.get());
  }
}

void Transfer::ReadBack(const TensorView& view, float* host) {
  const TensorView device = Flat(view);
  if (device.elements() == 0) return;
  assert(device.dtype == DType::kFloat32);
  const int64_t row_bytes = device.columns * BytesOf(device.dtype);
  CopyRows(host, row_bytes, device.data, device.row_stride * BytesOf(device.dtype), row_bytes,
           device.rows, cudaMemcpyDeviceToHost, context_.stream.get());
}

void Transfer::ToHost(const TensorView& view, float* host) {
  const TensorView device = Flat(view);
  if (device.elements() == 0) return;
  const int64_t size = BytesOf(device.dtype);
  const int64_t row_bytes = device.columns * size;
  const cudaStream_t stream = context_.stream.get();
  if (device.dtype == DType::kFloat32 && IsPinned(host)) {
    CopyRows(host, row_bytes, device.data, device.row_stride * size, row_bytes, device.rows,
             cudaMemcpyDeviceToHost, stream);
    LORAD_CUDA_CHECK(cudaStreamSynchronize(stream));
    return;
  }
  const int64_t step = RowsAtOnce(device);
  for (int64_t first = 0; first < device.rows; first += step) {
    const int64_t rows = std::min(step, device.rows - first);
    CopyRows(buffers_[0], row_bytes, device.Rows(first, rows).data, device.row_stride * size,
             row_bytes, rows, cudaMemcpyDeviceToHost, stream);
    LORAD_CUDA_CHECK(cudaStreamSynchronize(stream));
    Widen(buffers_[0], rows * device.columns, device.dtype, host + first * device.columns);
  }
}

float* Mapping::Open(const TensorView& to) {
  assert(to_.empty() && !to.empty());
  to_ = to;
  if (to.elements() <= capacity_) return values_;
  const int64_t bytes = to.elements() * static_cast<int64_t>(sizeof(float));
  const int64_t size = (bytes + kLargePage - 1) / kLargePage * kLargePage;
  std::free(values_);
  values_ = static_cast<float*>(std::aligned_alloc(kLargePage, static_cast<size_t>(size)));
  if (values_ == nullptr) throw std::bad_alloc();
  static_cast<void>(madvise(values_, static_cast<size_t>(size), MADV_HUGEPAGE));  // only faster
  capacity_ = size / static_cast<int64_t>(sizeof(float));
  return values_;
}

void Mapping::Close(Transfer& transfer) {
  assert(!to_.empty());
  transfer.ToDevice(values_, to_);
  to_ = {};
}

void Mapping::Release() {
  assert(to_.empty());
  std::free(std::exchange(values_, nullptr));
  capacity_ = 0;
}

}  // namespace lorad::kernels::cuda
