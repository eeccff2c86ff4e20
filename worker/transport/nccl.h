// NCCL, as far as two neighbouring stages need it: one direction between the memories of their
// GPUs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_copies.h"

namespace lorad::worker {

// What a name of an edge consists of (ncclUniqueId); passed by value.
struct NcclId {
  char bytes[128];
};
struct NcclConfig;

// The library, opened at run time: few hosts have it, and none needs it. Threads: any.
class NcclLibrary {
 public:
  // As the dynamic linker finds `file`. FAILED_PRECONDITION: it is not installed, or too old, and
  // how to mend that. It stays open for as long as the process lives, for it has threads of its
  // own.
  static absl::StatusOr<std::unique_ptr<const NcclLibrary>> Open(
      const std::string& file = "libnccl.so.2");

  const std::string& version() const { return version_; }  // "2.28.9"
  // For an edge that is to be: one side takes it and tells the other.
  absl::StatusOr<std::string> NewName() const;

 private:
  friend class NcclEdge;

  absl::Status Find(void* library);

  std::string version_;
  int (*get_version_)(int* version) = nullptr;
  int (*get_unique_id_)(NcclId* id) = nullptr;
  int (*init_)(void** comm, int ranks, NcclId id, int rank, NcclConfig* config) = nullptr;
  int (*async_error_)(void* comm, int* error) = nullptr;
  int (*send_)(const void* from, size_t count, int type, int peer, void* comm,
               void* stream) = nullptr;
  int (*receive_)(void* to, size_t count, int type, int peer, void* comm, void* stream) = nullptr;
  int (*abort_)(void* comm) = nullptr;
  const char* (*error_string_)(int error) = nullptr;
};

// A communicator of two ranks, of which the first sends and the second receives. What it costs of a
// GPU's memory: planner/cost/memory.h.
//
// A kernel of NCCL holds multiprocessors until the other side has its own, and nothing but an abort
// ends it where that is gone: neither stream nor communicator hears of a peer that was killed. So
// both sides call together, having agreed over the connection of their hosts, and all waits are the
// host's: `broken` is asked every millisecond, and what it says ends them and the communicator.
// Errors of NCCL are UNAVAILABLE. After any error the edge is of no more use.
// Threads: one at a time; the end may come from another.
class NcclEdge {
 public:
  using Broken = std::function<absl::Status()>;

  // Both sides of `name` at one time: each waits for the other, `limit_ms` at most
  // (DEADLINE_EXCEEDED). `lane`: for the edge alone, with a queue. `library` must outlive it.
  static absl::StatusOr<std::unique_ptr<NcclEdge>> Open(const NcclLibrary& library,
                                                        const std::string& name, bool sends,
                                                        std::unique_ptr<kernels::CopyLane> lane,
                                                        int64_t limit_ms, const Broken& broken);
  ~NcclEdge();
  NcclEdge(const NcclEdge&) = delete;
  NcclEdge& operator=(const NcclEdge&) = delete;

  // Memory of this device. Return when the bytes have left it, or have come.
  absl::Status Send(const void* from, int64_t bytes, const Broken& broken);
  absl::Status Receive(void* to, int64_t bytes, const Broken& broken);

 private:
  NcclEdge(const NcclLibrary& library, std::unique_ptr<kernels::CopyLane> lane)
      : library_(library), lane_(std::move(lane)) {}

  // Until what was enqueued is done, on the host's side and on the device's.
  absl::Status Await(int result, const char* what, const Broken& broken, int64_t limit_ms);
  absl::Status Failed(const char* what, int error);
  void Abort();

  const NcclLibrary& library_;
  const std::unique_ptr<kernels::CopyLane> lane_;
  void* comm_ = nullptr;
};

}  // namespace lorad::worker
