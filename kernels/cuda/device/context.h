// What every operation on one GPU shares: the device, its stream, the activation type, and small
// tables that go to the device with a microbatch. Handles of CUDA objects own them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

// Destructors of handles ignore errors: at a process's end the driver may be gone before them.
class Stream {
 public:
  Stream();  // does not wait for the default stream, nor it for this one
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// Without timing.
class Event {
 public:
  Event();
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  void Record(cudaStream_t stream);
  // True if everything before the last Record is done (or nothing was recorded).
  bool Done() const;
  void Wait() const;
  // What is enqueued on the stream from now on waits for the last Record.
  void Await(cudaStream_t stream) const;

 private:
  cudaEvent_t event_ = nullptr;
};

// With timing.
class TimedEvent {
 public:
  TimedEvent();
  ~TimedEvent();
  TimedEvent(const TimedEvent&) = delete;
  TimedEvent& operator=(const TimedEvent&) = delete;
  void Record(cudaStream_t stream);
  // As Event's.
  bool Done() const;
  void Wait() const;
  // Waits for both. REQUIRES: both were recorded.
  double MsSince(const TimedEvent& earlier) const;

 private:
  cudaEvent_t event_ = nullptr;
};

class TablePool;

// Pinned host memory and device memory of the same size.
struct TableBlock {
  explicit TableBlock(size_t class_index);
  ~TableBlock();
  TableBlock(const TableBlock&) = delete;
  TableBlock& operator=(const TableBlock&) = delete;

  const size_t size_class;
  const int64_t bytes;
  void* host = nullptr;
  void* device = nullptr;
  Event uploaded;
  Event read;  // all that the operations read of it
};

// A block of host memory and one of device memory of the same size: filled on the host, uploaded as
// a whole before whatever is enqueued next. Goes back to its pool at the end; what was enqueued may
// still read it then, for the next upload into it awaits that.
class DeviceTable {
 public:
  DeviceTable() = default;
  ~DeviceTable();
  DeviceTable(DeviceTable&& other) noexcept { Swap(other); }
  DeviceTable& operator=(DeviceTable&& other) noexcept {
    Swap(other);
    return *this;
  }

  template <typename T>
  T* Host(int64_t offset) const {
    return reinterpret_cast<T*>(HostBytes() + offset);
  }
  template <typename T>
  T* Device(int64_t offset) const {
    return reinterpret_cast<T*>(DeviceBytes() + offset);
  }
  // The host's side of an array of the device's side.
  template <typename T>
  T* HostOf(const T* array) const {
    return Host<T>(reinterpret_cast<const char*>(array) - DeviceBytes());
  }
  // Enqueues the copy of the first `bytes`, on a stream of its own: it passes beside the operations
  // before it, and what is enqueued next awaits it. Until it is done the host's side must not
  // change.
  void Upload(int64_t bytes);
  // The same in two parts. Where some time lies between them nothing is left to be awaited, and the
  // next kernel may be launched early, which it may not behind a wait in its stream.
  void StartUpload(int64_t bytes);
  void AwaitUpload() const;

 private:
  friend class TablePool;

  DeviceTable(TablePool* pool, std::unique_ptr<TableBlock> block)
      : pool_(pool), block_(std::move(block)) {}
  char* HostBytes() const { return static_cast<char*>(block_->host); }
  char* DeviceBytes() const { return static_cast<char*>(block_->device); }
  void Swap(DeviceTable& other) noexcept {
    std::swap(pool_, other.pool_);
    std::swap(block_, other.block_);
  }

  TablePool* pool_ = nullptr;
  std::unique_ptr<TableBlock> block_;
};

// Hands blocks out again and again: nothing is allocated once as many are there as are in use at
// one time. Outlives its tables. One thread.
class TablePool {
 public:
  // stream: of the operations.
  explicit TablePool(cudaStream_t stream) : stream_(stream) {}

  // Contents are unspecified.
  DeviceTable Take(int64_t bytes);
  // Blocks ever allocated: constant in the steady state.
  int64_t allocations() const { return allocations_; }

 private:
  friend class DeviceTable;

  void Return(std::unique_ptr<TableBlock> block);

  const cudaStream_t stream_;
  const Stream uploads_;
  std::vector<std::deque<std::unique_ptr<TableBlock>>>
      free_;  // by size class, least recently used first
  int64_t allocations_ = 0;
};

// Offsets of arrays in one block, each aligned to 16 bytes or to its type's alignment.
class TableLayout {
 public:
  template <typename T>
  int64_t Add(int64_t count) {
    constexpr int64_t kAlignment = alignof(T) > 16 ? alignof(T) : 16;
    const int64_t offset = (bytes_ + kAlignment - 1) / kAlignment * kAlignment;
    bytes_ = offset + count * static_cast<int64_t>(sizeof(T));
    return offset;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

// One GPU as the operations see it. Constructing it makes the device current for the thread.
struct Context {
  Context(int device_index, DType activation_dtype);

  const int device;
  const DType activation;  // kBfloat16 or kFloat32
  int multiprocessors = 0;
  int capability = 0;    // 90 for sm_90
  int shared_bytes = 0;  // that a block may have
  Stream stream;         // all operations, in call order
  TablePool tables;
};

}  // namespace lorad::kernels::cuda
