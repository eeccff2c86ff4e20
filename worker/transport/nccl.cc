#include "worker/transport/nccl.h"

#include <dlfcn.h>

#include <cassert>
#include <chrono>
#include <climits>
#include <cstring>
#include <limits>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::worker {

// nccl.h's ncclConfig_t as of 2.27, of which an older library takes the beginning.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21800;  // of the fields up to split_share
  int blocking = 0;
  int cga_cluster_size = INT_MIN;  // INT_MIN, null: the library's choice
  int min_ctas = INT_MIN;
  int max_ctas = INT_MIN;
  const char* net_name = nullptr;
  int split_share = INT_MIN;
  int traffic_class = INT_MIN;
};
static_assert(sizeof(NcclConfig) == 48);

namespace {

using std::chrono::steady_clock;

constexpr int kOldest = 21800;
// ncclResult_t, ncclDataType_t.
constexpr int kSuccess = 0;
constexpr int kInProgress = 7;
constexpr int kInt8 = 0;

constexpr std::chrono::microseconds kPause(30);
constexpr std::chrono::milliseconds kAskEvery(1);
constexpr int64_t kForEver = std::numeric_limits<int64_t>::max();

absl::Status NotToBeHad(const std::string& why) {
  return absl::FailedPreconditionError(
      absl::StrCat("NCCL cannot be used: ", why,
                   "; install NCCL 2.18 or newer (libnccl.so.2) where the dynamic "
                   "linker finds it, or take another --transport"));
}

std::string VersionText(int version) {
  return absl::StrCat(version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace

absl::StatusOr<std::unique_ptr<const NcclLibrary>> NcclLibrary::Open(const std::string& file) {
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return NotToBeHad(dlerror());
  auto nccl = std::make_unique<NcclLibrary>();
  absl::Status status = nccl->Find(library);
  if (!status.ok()) return status;
  int version = 0;
  if (nccl->get_version_(&version) != kSuccess || version < kOldest) {
    return NotToBeHad(absl::StrCat(file, " is of version ", VersionText(version)));
  }
  nccl->version_ = VersionText(version);
  return nccl;
}

absl::Status NcclLibrary::Find(void* library) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) absl::StrAppend(&missing, " ", name);
  };
  find(get_version_, "ncclGetVersion");
  find(get_unique_id_, "ncclGetUniqueId");
  find(init_, "ncclCommInitRankConfig");
  find(async_error_, "ncclCommGetAsyncError");
  find(send_, "ncclSend");
  find(receive_, "ncclRecv");
  find(abort_, "ncclCommAbort");
  find(error_string_, "ncclGetErrorString");
  return missing.empty() ? absl::OkStatus() : NotToBeHad(absl::StrCat("it lacks", missing));
}

absl::StatusOr<std::string> NcclLibrary::NewName() const {
  NcclId id;
  const int result = get_unique_id_(&id);
  if (result != kSuccess) {
    return absl::UnavailableError(absl::StrCat("NCCL names no edge: ", error_string_(result)));
  }
  return std::string(id.bytes, sizeof(id.bytes));
}

absl::StatusOr<std::unique_ptr<NcclEdge>> NcclEdge::Open(const NcclLibrary& library,
                                                         const std::string& name, bool sends,
                                                         std::unique_ptr<kernels::CopyLane> lane,
                                                         int64_t limit_ms, const Broken& broken) {
  NcclId id;
  if (name.size() != sizeof(id.bytes)) {
    return absl::UnavailableError("what the other side calls an edge is no name of NCCL's");
  }
  std::memcpy(id.bytes, name.data(), sizeof(id.bytes));
  auto edge = std::unique_ptr<NcclEdge>(new NcclEdge(library, std::move(lane)));
  edge->lane_->Queue();  // makes its device this thread's
  NcclConfig config;
  const int result = library.init_(&edge->comm_, 2, id, sends ? 0 : 1, &config);
  const absl::Status status = edge->Await(result, "connecting", broken, limit_ms);
  if (!status.ok()) return status;
  return edge;
}

NcclEdge::~NcclEdge() { Abort(); }

absl::Status NcclEdge::Send(const void* from, int64_t bytes, const Broken& broken) {
  if (comm_ == nullptr) return absl::UnavailableError("NCCL: the edge has ended");
  void* const queue = lane_->Queue();
  return Await(library_.send_(from, static_cast<size_t>(bytes), kInt8, 1, comm_, queue), "sending",
               broken, kForEver);
}

absl::Status NcclEdge::Receive(void* to, int64_t bytes, const Broken& broken) {
  if (comm_ == nullptr) return absl::UnavailableError("NCCL: the edge has ended");
  void* const queue = lane_->Queue();
  return Await(library_.receive_(to, static_cast<size_t>(bytes), kInt8, 0, comm_, queue),
               "receiving", broken, kForEver);
}

absl::Status NcclEdge::Await(int result, const char* what, const Broken& broken, int64_t limit_ms) {
  const auto begin = steady_clock::now();
  auto ask_at = begin;
  while (true) {
    if (result != kSuccess && result != kInProgress) return Failed(what, result);
    int state = kInProgress;
    const int asked = library_.async_error_(comm_, &state);
    if (asked != kSuccess) return Failed(what, asked);
    if (state != kSuccess && state != kInProgress) return Failed(what, state);
    if (state == kSuccess && lane_->Done()) return absl::OkStatus();
    const auto now = steady_clock::now();
    if (now >= ask_at) {
      ask_at = now + kAskEvery;
      absl::Status status = broken();
      const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(now - begin).count();
      if (status.ok() && ms >= limit_ms) {
        status = absl::DeadlineExceededError(
            absl::StrCat("NCCL: ", what, " has not ended in ", limit_ms, " ms"));
      }
      if (!status.ok()) {
        Abort();
        return status;
      }
    }
    std::this_thread::sleep_for(kPause);
  }
}

absl::Status NcclEdge::Failed(const char* what, int error) {
  const std::string why = library_.error_string_(error);
  Abort();
  return absl::UnavailableError(absl::StrCat("NCCL: ", what, ": ", why));
}

void NcclEdge::Abort() {
  if (comm_ == nullptr) return;
  lane_->Queue();  // makes its device this thread's
  static_cast<void>(library_.abort_(std::exchange(comm_, nullptr)));
}

}  // namespace lorad::worker
