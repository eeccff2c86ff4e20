#include "kernels/cuda/device/copies.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/check.h"
#include "kernels/cuda/device/transfer.h"

namespace lorad::kernels::cuda {
namespace {

using ProcessId = std::array<uint32_t, 4>;

// What CUDA IPC shares is the block that an allocation is in, and smaller ones are several in one:
// then a process that has one open would reach the others, and whoever gets its place when it is
// freed. Whole blocks are their allocation's alone, and are kept while anybody has them open.
constexpr int64_t kBlockBytes = int64_t{2} << 20;

// Drawn once: of no other process, on this host or another.
const ProcessId& ThisProcess() {
  static const ProcessId drawn = [] {
    std::random_device random;
    ProcessId id;
    for (uint32_t& word : id) word = random();
    return id;
  }();
  return drawn;
}

// The bytes of a SharedMemory's name.
struct Name {
  ProcessId process;
  uint64_t number = 0;  // in that process
  int64_t bytes = 0;
  int32_t device = 0;  // likewise
  int32_t zero = 0;
  cudaIpcMemHandle_t handle;
};
static_assert(std::is_trivially_copyable_v<Name>);

// Clears the error, which is not sticky and handled by the caller.
absl::Status NotShared(cudaError_t error, const char* what) {
  static_cast<void>(cudaGetLastError());
  return absl::FailedPreconditionError(
      absl::StrCat(what, ": ", cudaGetErrorName(error), " (", cudaGetErrorString(error), ")"));
}

// Device memory that ends with its last user in this process.
class Allocation {
 public:
  Allocation(int device, void* address) : device_(device), address_(address) {}
  ~Allocation() { static_cast<void>(cudaFree(address_)); }
  Allocation(const Allocation&) = delete;
  Allocation& operator=(const Allocation&) = delete;
  int device() const { return device_; }
  void* address() const { return address_; }

 private:
  const int device_;
  void* const address_;
};

// What this process shares, by number.
class Shares {
 public:
  static Shares& Of() {
    static Shares* const shares = new Shares;  // outlives whatever ends at a process's end
    return *shares;
  }
  uint64_t Add(const std::shared_ptr<Allocation>& allocation) {
    std::lock_guard lock(mutex_);
    allocations_[++last_] = allocation;
    return last_;
  }
  std::shared_ptr<Allocation> Find(uint64_t number) {
    std::lock_guard lock(mutex_);
    const auto found = allocations_.find(number);
    return found == allocations_.end() ? nullptr : found->second.lock();
  }
  void Remove(uint64_t number) {
    std::lock_guard lock(mutex_);
    allocations_.erase(number);
  }

 private:
  std::mutex mutex_;
  uint64_t last_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::weak_ptr<Allocation>> allocations_ ABSL_GUARDED_BY(mutex_);
};

class CudaShared final : public SharedMemory {
 public:
  CudaShared(std::shared_ptr<Allocation> allocation, int64_t bytes,
             const cudaIpcMemHandle_t& handle)
      : allocation_(std::move(allocation)), number_(Shares::Of().Add(allocation_)) {
    const Name name{.process = ThisProcess(),
                    .number = number_,
                    .bytes = bytes,
                    .device = allocation_->device(),
                    .handle = handle};
    name_.assign(reinterpret_cast<const char*>(&name), sizeof(name));
  }
  ~CudaShared() override { Shares::Of().Remove(number_); }
  void* address() const override { return allocation_->address(); }
  const std::string& name() const override { return name_; }

 private:
  const std::shared_ptr<Allocation> allocation_;
  const uint64_t number_;
  std::string name_;
};

class OpenedHere final : public OpenedMemory {
 public:
  OpenedHere(std::shared_ptr<Allocation> allocation, int64_t bytes)
      : allocation_(std::move(allocation)), bytes_(bytes) {}
  void* address() const override { return allocation_->address(); }
  int64_t bytes() const override { return bytes_; }

 private:
  const std::shared_ptr<Allocation> allocation_;
  const int64_t bytes_;
};

class OpenedByIpc final : public OpenedMemory {
 public:
  OpenedByIpc(void* address, int64_t bytes) : address_(address), bytes_(bytes) {}
  ~OpenedByIpc() override { static_cast<void>(cudaIpcCloseMemHandle(address_)); }
  void* address() const override { return address_; }
  int64_t bytes() const override { return bytes_; }

 private:
  void* const address_;
  const int64_t bytes_;
};

class CudaLane final : public CopyLane {
 public:
  explicit CudaLane(const Context& context) : context_(context) {
    // The host sleeps while it waits: other threads of the worker have work.
    LORAD_CUDA_CHECK(
        cudaEventCreateWithFlags(&done_, cudaEventDisableTiming | cudaEventBlockingSync));
  }
  ~CudaLane() override {
    static_cast<void>(cudaStreamSynchronize(stream_.get()));
    static_cast<void>(cudaEventDestroy(done_));
  }

  void Remember() override {
    Use();
    remembered_.Record(context_.stream.get());
  }
  void Follow() override {
    Use();
    remembered_.Await(stream_.get());
  }
  void Copy(const void* from, void* to, int64_t bytes) override {
    Use();
    LORAD_CUDA_CHECK(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, stream_.get()));
  }
  void Lead() override {
    Use();
    copied_.Record(stream_.get());
    copied_.Await(context_.stream.get());
  }
  void Wait() override {
    Use();
    LORAD_CUDA_CHECK(cudaEventRecord(done_, stream_.get()));
    LORAD_CUDA_CHECK(cudaEventSynchronize(done_));
  }

  void* Queue() override {
    Use();
    return stream_.get();
  }
  bool Done() override {
    Use();
    const cudaError_t state = cudaStreamQuery(stream_.get());
    if (state == cudaErrorNotReady) return false;
    LORAD_CUDA_CHECK(state);
    return true;
  }

 private:
  // A thread that has not said which GPU it means is on the first.
  void Use() const { LORAD_CUDA_CHECK(cudaSetDevice(context_.device)); }

  const Context& context_;
  const Stream stream_;
  Event remembered_;
  Event copied_;
  cudaEvent_t done_ = nullptr;
};

class CudaCopies final : public DeviceCopies {
 public:
  explicit CudaCopies(const Context& context) : context_(context) {}

  std::unique_ptr<CopyLane> MakeLane() override {
    Use();
    return std::make_unique<CudaLane>(context_);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeArena(int64_t bytes) override {
    Use();
    return MakeDeviceArena(context_, bytes);
  }

  absl::StatusOr<std::unique_ptr<Arena>> MakeHostArena(int64_t bytes) override {
    Use();
    return MakePinnedArena(bytes);
  }

  absl::StatusOr<std::unique_ptr<SharedMemory>> Share(int64_t bytes) override {
    Use();
    void* address = nullptr;
    const int64_t blocks = std::max<int64_t>((bytes + kBlockBytes - 1) / kBlockBytes, 1);
    const cudaError_t error = cudaMalloc(&address, static_cast<size_t>(blocks * kBlockBytes));
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      return absl::ResourceExhaustedError(
          absl::StrCat("GPU ", context_.device, " has no ", bytes,
                       " bytes free for what comes from a neighbouring stage; end other processes "
                       "on it (nvidia-smi lists them), or lower the worker's memory budget"));
    }
    LORAD_CUDA_CHECK(error);
    auto allocation = std::make_shared<Allocation>(context_.device, address);
    cudaIpcMemHandle_t handle;
    const cudaError_t shared = cudaIpcGetMemHandle(&handle, address);
    if (shared != cudaSuccess) return NotShared(shared, "GPU memory cannot be shared by CUDA IPC");
    return std::make_unique<CudaShared>(std::move(allocation), bytes, handle);
  }

  absl::StatusOr<std::unique_ptr<OpenedMemory>> Open(std::string_view text) override {
    Use();
    Name name;
    if (text.size() != sizeof(name)) {
      return absl::FailedPreconditionError(
          "what the other side calls its memory is no name of CUDA");
    }
    std::memcpy(&name, text.data(), sizeof(name));
    if (name.process == ThisProcess()) return OpenHere(name);
    void* address = nullptr;
    const cudaError_t error =
        cudaIpcOpenMemHandle(&address, name.handle, cudaIpcMemLazyEnablePeerAccess);
    if (error != cudaSuccess) {
      return NotShared(error, "memory of the other GPU worker cannot be opened by CUDA IPC");
    }
    return std::make_unique<OpenedByIpc>(address, name.bytes);
  }

 private:
  absl::StatusOr<std::unique_ptr<OpenedMemory>> OpenHere(const Name& name) const {
    std::shared_ptr<Allocation> allocation = Shares::Of().Find(name.number);
    if (allocation == nullptr) return absl::FailedPreconditionError("the memory has gone");
    if (name.device != context_.device) {
      const cudaError_t error = cudaDeviceEnablePeerAccess(name.device, 0);
      if (error != cudaSuccess && error != cudaErrorPeerAccessAlreadyEnabled) {
        return NotShared(error, "the GPUs have no way to each other");
      }
      static_cast<void>(cudaGetLastError());  // that it was enabled already
    }
    return std::make_unique<OpenedHere>(std::move(allocation), name.bytes);
  }

  void Use() const { LORAD_CUDA_CHECK(cudaSetDevice(context_.device)); }

  const Context& context_;
};

}  // namespace

std::unique_ptr<DeviceCopies> MakeCudaCopies(const Context& context) {
  return std::make_unique<CudaCopies>(context);
}

}  // namespace lorad::kernels::cuda
