#include "kernels/cuda/device/context.h"

#include <bit>
#include <cassert>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

// The least that one block holds; size classes are this times powers of two.
constexpr int64_t kBlockBytesMin = 4096;
// A class grows to this many blocks before a taker waits for one that is still being read.
constexpr size_t kBlocksBeforeWaiting = 8;

size_t ClassOf(int64_t bytes) {
  const uint64_t blocks = static_cast<uint64_t>((bytes + kBlockBytesMin - 1) / kBlockBytesMin);
  return blocks <= 1 ? 0 : static_cast<size_t>(std::bit_width(blocks - 1));
}

bool IsDone(cudaEvent_t event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) return false;
  LORAD_CUDA_CHECK(error);
  return true;
}

}  // namespace

Stream::Stream() { LORAD_CUDA_CHECK(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }

Stream::~Stream() { static_cast<void>(cudaStreamDestroy(stream_)); }

Event::Event() { LORAD_CUDA_CHECK(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming)); }

Event::~Event() { static_cast<void>(cudaEventDestroy(event_)); }

void Event::Record(cudaStream_t stream) { LORAD_CUDA_CHECK(cudaEventRecord(event_, stream)); }

bool Event::Done() const { return IsDone(event_); }

void Event::Wait() const { LORAD_CUDA_CHECK(cudaEventSynchronize(event_)); }

void Event::Await(cudaStream_t stream) const {
  LORAD_CUDA_CHECK(cudaStreamWaitEvent(stream, event_, 0));
}

TimedEvent::TimedEvent() { LORAD_CUDA_CHECK(cudaEventCreate(&event_)); }

TimedEvent::~TimedEvent() { static_cast<void>(cudaEventDestroy(event_)); }

void TimedEvent::Record(cudaStream_t stream) { LORAD_CUDA_CHECK(cudaEventRecord(event_, stream)); }

bool TimedEvent::Done() const { return IsDone(event_); }

void TimedEvent::Wait() const { LORAD_CUDA_CHECK(cudaEventSynchronize(event_)); }

double TimedEvent::MsSince(const TimedEvent& earlier) const {
  earlier.Wait();
  Wait();
  float ms = 0;
  LORAD_CUDA_CHECK(cudaEventElapsedTime(&ms, earlier.event_, event_));
  return static_cast<double>(ms);
}

TableBlock::TableBlock(size_t class_index)
    : size_class(class_index), bytes(kBlockBytesMin << class_index) {
  LORAD_CUDA_CHECK(cudaMallocHost(&host, static_cast<size_t>(bytes)));
  LORAD_CUDA_CHECK(cudaMalloc(&device, static_cast<size_t>(bytes)));
}

TableBlock::~TableBlock() {
  static_cast<void>(cudaFreeHost(host));
  static_cast<void>(cudaFree(device));
}

DeviceTable::~DeviceTable() {
  if (block_ != nullptr) pool_->Return(std::move(block_));
}

void DeviceTable::Upload(int64_t bytes) {
  StartUpload(bytes);
  AwaitUpload();
}

void DeviceTable::StartUpload(int64_t bytes) {
  assert(bytes >= 0 && bytes <= block_->bytes);
  if (bytes == 0) return;
  const cudaStream_t uploads = pool_->uploads_.get();
  block_->read.Await(uploads);
  LORAD_CUDA_CHECK(cudaMemcpyAsync(block_->device, block_->host, static_cast<size_t>(bytes),
                                   cudaMemcpyHostToDevice, uploads));
  block_->uploaded.Record(uploads);
}

void DeviceTable::AwaitUpload() const {
  if (!block_->uploaded.Done()) block_->uploaded.Await(pool_->stream_);
}

DeviceTable TablePool::Take(int64_t bytes) {
  const size_t size_class = ClassOf(bytes);
  if (free_.size() <= size_class) free_.resize(size_class + 1);
  auto& blocks = free_[size_class];
  const bool ready = !blocks.empty() && blocks.front()->uploaded.Done();
  if (!ready && blocks.size() < kBlocksBeforeWaiting) {
    ++allocations_;
    return DeviceTable(this, std::make_unique<TableBlock>(size_class));
  }
  std::unique_ptr<TableBlock> block = std::move(blocks.front());
  blocks.pop_front();
  if (!ready) block->uploaded.Wait();
  return DeviceTable(this, std::move(block));
}

void TablePool::Return(std::unique_ptr<TableBlock> block) {
  block->read.Record(stream_);
  free_[block->size_class].push_back(std::move(block));
}

namespace {

int MakeCurrent(int device_index) {
  LORAD_CUDA_CHECK(cudaSetDevice(device_index));
  return device_index;
}

int Attribute(cudaDeviceAttr attribute, int device) {
  int value = 0;
  LORAD_CUDA_CHECK(cudaDeviceGetAttribute(&value, attribute, device));
  return value;
}

}  // namespace

Context::Context(int device_index, DType activation_dtype)
    : device(MakeCurrent(device_index)),
      activation(activation_dtype),
      multiprocessors(Attribute(cudaDevAttrMultiProcessorCount, device_index)),
      capability(10 * Attribute(cudaDevAttrComputeCapabilityMajor, device_index) +
                 Attribute(cudaDevAttrComputeCapabilityMinor, device_index)),
      shared_bytes(Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device_index)),
      tables(stream.get()) {}

}  // namespace lorad::kernels::cuda
