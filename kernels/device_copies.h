// Tensors on their way out of a device's memory and into it, beside the device's operations: copies
// that pass while it computes, and memory that other processes of the same host write into.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/arena.h"

namespace lorad::kernels {

// Copies that run one after the other, at their own time but for what Follow and Lead say. The end
// waits for them. Threads: any, one at a time; Remember and Lead from the one that calls the
// backend.
class CopyLane {
 public:
  virtual ~CopyLane() = default;

  // Keeps the moment at which everything is done that the backend has enqueued so far.
  virtual void Remember() = 0;
  // Copies from now on wait for the moment that was kept last.
  virtual void Follow() = 0;
  // Enqueues a copy. Both sides: memory of this device, memory that was opened (OpenedMemory), or
  // an arena of MakeHostArena.
  virtual void Copy(const void* from, void* to, int64_t bytes) = 0;
  // What the backend enqueues from now on waits for all copies so far.
  virtual void Lead() = 0;
  // The host waits for all copies so far.
  virtual void Wait() = 0;

  // What a library that the device's maker has for it enqueues on (CUDA: the cudaStream_t), whose
  // work then counts as a copy. The device is the calling thread's from then on.
  virtual void* Queue() = 0;
  // Whether all copies so far are done.
  virtual bool Done() = 0;
};

// Memory of this device under a name by which others can open it. Whoever has it open keeps it:
// what they still write when this ends reaches nobody else's memory.
class SharedMemory {
 public:
  virtual ~SharedMemory() = default;
  virtual void* address() const = 0;
  virtual const std::string& name() const = 0;
};

// Memory of another process, or of this one, that was opened by its name.
class OpenedMemory {
 public:
  virtual ~OpenedMemory() = default;
  virtual void* address() const = 0;
  virtual int64_t bytes() const = 0;
};

// What a backend offers to those who carry tensors for it; it must outlive them. Threads: any.
class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;

  virtual std::unique_ptr<CopyLane> MakeLane() = 0;
  // As Backend::MakeArena and Backend::MakeHostArena.
  virtual absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) = 0;
  // RESOURCE_EXHAUSTED where there is no memory, FAILED_PRECONDITION where this device or system
  // shares none.
  virtual absl::StatusOr<std::unique_ptr<SharedMemory>> Share(int64_t bytes) = 0;
  // FAILED_PRECONDITION, and why: another host or container, devices without a way to each other.
  virtual absl::StatusOr<std::unique_ptr<OpenedMemory>> Open(std::string_view name) = 0;
};

}  // namespace lorad::kernels
