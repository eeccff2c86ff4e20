// A library with NCCL's names for two ranks of one process, whose devices are fake: kernels run on
// their lanes' threads and copy in the host's memory. As NCCL's they hold their lane until the other
// side has its own, and nothing but an abort of their own communicator ends them: one that was left
// alone is never told.
#include "tests/worker/transport/fake_nccl.h"

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "tests/worker/transport/fake_queue.h"

namespace {

using lorad::worker::FakeNccl;
using lorad::worker::FakeQueue;

constexpr int kSuccess = 0;
constexpr int kInvalidUsage = 5;
constexpr int kInProgress = 7;
constexpr size_t kIdBytes = 128;

FakeNccl& Control() {
  static FakeNccl control;
  return control;
}

struct Id {
  char bytes[kIdBytes];
};

// Two ranks. All under one lock.
struct Meeting {
  bool here[2] = {false, false};
  const void* from = nullptr;  // of a send under way
  void* to = nullptr;          // of a receive
  int passed = 0;              // counts up
};

struct Comm {
  std::shared_ptr<Meeting> meeting;
  int rank = 0;
  bool aborted = false;
  int running = 0;  // kernels
};

std::mutex mutex;
std::condition_variable changed;
int last_id = 0;
std::map<std::string, std::shared_ptr<Meeting>> meetings;

struct Kernel {
  Comm* comm = nullptr;
  const void* from = nullptr;
  void* to = nullptr;
  size_t bytes = 0;
};

void Run(void* argument) {
  const std::unique_ptr<Kernel> kernel(static_cast<Kernel*>(argument));
  Comm* const comm = kernel->comm;
  Meeting& meeting = *comm->meeting;
  std::unique_lock lock(mutex);
  ++Control().kernels;
  const bool sends = comm->rank == 0;
  if (sends) meeting.from = kernel->from;
  if (!sends) meeting.to = kernel->to;
  const int passed = meeting.passed;
  changed.notify_all();
  const auto ready = [&] {
    return comm->aborted || (sends ? meeting.passed != passed : meeting.from != nullptr);
  };
  if (!changed.wait_for(lock, std::chrono::seconds(5), ready)) {
    ++Control().alone;
    changed.wait(lock, ready);
  }
  if (comm->aborted) {
    ++Control().aborted;
  } else if (!sends) {
    std::memcpy(meeting.to, meeting.from, kernel->bytes);
    meeting.from = meeting.to = nullptr;
    ++meeting.passed;
  }
  --comm->running;
  changed.notify_all();
}

int Enqueue(Kernel kernel, void* stream) {
  {
    std::lock_guard lock(mutex);
    ++kernel.comm->running;
  }
  auto* queue = static_cast<FakeQueue*>(stream);
  queue->enqueue(queue->lane, Run, new Kernel(kernel));
  return kInProgress;
}

}  // namespace

extern "C" {

FakeNccl* FakeNcclControl() { return &Control(); }

int ncclGetVersion(int* version) {
  *version = Control().version;
  return kSuccess;
}

int ncclGetUniqueId(Id* id) {
  std::lock_guard lock(mutex);
  std::memset(id->bytes, 0, sizeof(id->bytes));
  ++last_id;
  std::memcpy(id->bytes, &last_id, sizeof(last_id));
  return kSuccess;
}

int ncclCommInitRankConfig(void** comm, int ranks, Id id, int rank, void*) {
  std::lock_guard lock(mutex);
  if (ranks != 2 || Control().refuses) return kInvalidUsage;
  std::shared_ptr<Meeting>& meeting = meetings[std::string(id.bytes, sizeof(id.bytes))];
  if (meeting == nullptr) meeting = std::make_shared<Meeting>();
  meeting->here[rank] = true;
  *comm = new Comm{.meeting = meeting, .rank = rank};
  ++Control().communicators;
  return kInProgress;
}

int ncclCommGetAsyncError(void* comm, int* error) {
  std::lock_guard lock(mutex);
  const Meeting& meeting = *static_cast<Comm*>(comm)->meeting;
  *error = meeting.here[0] && meeting.here[1] ? kSuccess : kInProgress;
  return kSuccess;
}

int ncclSend(const void* from, size_t count, int, int, void* comm, void* stream) {
  return Enqueue({.comm = static_cast<Comm*>(comm), .from = from, .bytes = count}, stream);
}

int ncclRecv(void* to, size_t count, int, int, void* comm, void* stream) {
  return Enqueue({.comm = static_cast<Comm*>(comm), .to = to, .bytes = count}, stream);
}

int ncclCommAbort(void* comm) {
  auto* const gone = static_cast<Comm*>(comm);
  {
    std::unique_lock lock(mutex);
    gone->aborted = true;
    changed.notify_all();
    changed.wait(lock, [&] { return gone->running == 0; });
    --Control().communicators;
  }
  delete gone;
  return kSuccess;
}

const char* ncclGetErrorString(int error) {
  return error == kInvalidUsage ? "the fake refuses" : "of the fake";
}

}  // extern "C"
