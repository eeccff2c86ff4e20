// Every kernel, copy and fill that a program runs on its GPU, with its beginning and end, by CUPTI:
// what a step spends its time on, the gaps included. Loaded into a program by the driver:
//
//   CUDA_INJECTION64_PATH=.../libkernel_trace.so KERNEL_TRACE=FILE program
//
// FILE.<process> gets a line for each, "begin end name": nanoseconds and the demangled name.
// kernel_table.py reads it. Lines come in blocks, the last when the program ends.
#include <cupti.h>
#include <cxxabi.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "tests/kernels/cupti.h"

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;

class Trace {
 public:
  bool Start() {
    const char* path = std::getenv("KERNEL_TRACE");
    if (path == nullptr || library_ == nullptr) return false;
    file_ = std::fopen((std::string(path) + "." + std::to_string(getpid())).c_str(), "w");
    if (file_ == nullptr) return false;
    Find(next_, "cuptiActivityGetNextRecord");
    Find(flush_, "cuptiActivityFlushAll");
    decltype(&cuptiActivityRegisterCallbacks) register_callbacks = nullptr;
    decltype(&cuptiActivityEnable) enable = nullptr;
    Find(register_callbacks, "cuptiActivityRegisterCallbacks");
    Find(enable, "cuptiActivityEnable");
    if (next_ == nullptr || flush_ == nullptr || register_callbacks == nullptr ||
        enable == nullptr) {
      return false;
    }
    return register_callbacks(OfferBuffer, TakeBuffer) == CUPTI_SUCCESS &&
           enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS &&
           enable(CUPTI_ACTIVITY_KIND_MEMCPY) == CUPTI_SUCCESS &&
           enable(CUPTI_ACTIVITY_KIND_MEMSET) == CUPTI_SUCCESS;
  }

  void Finish() {
    if (flush_ != nullptr) flush_(1);
    if (file_ != nullptr) std::fflush(file_);
  }

 private:
  template <typename Function>
  void Find(Function& function, const char* name) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
  }

  static void CUPTIAPI OfferBuffer(uint8_t** buffer, size_t* bytes, size_t* records_max) {
    *buffer = static_cast<uint8_t*>(std::aligned_alloc(8, kBufferBytes));
    *bytes = *buffer == nullptr ? 0 : kBufferBytes;
    *records_max = 0;
  }

  static void CUPTIAPI TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid);

  void Write(uint8_t* buffer, size_t valid) {
    const std::lock_guard<std::mutex> lock(mutex_);
    CUpti_Activity* record = nullptr;
    while (next_(buffer, valid, &record) == CUPTI_SUCCESS) {
      if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
        const auto& kernel = *reinterpret_cast<const CUpti_ActivityKernel9*>(record);
        WriteLine(kernel, NameOf(kernel.name).c_str());
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
        const auto& copy = *reinterpret_cast<const CUpti_ActivityMemcpy6*>(record);
        WriteLine(copy, copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_HTOD   ? "copy to the device"
                        : copy.copyKind == CUPTI_ACTIVITY_MEMCPY_KIND_DTOH ? "copy to the host"
                                                                           : "copy");
      } else if (record->kind == CUPTI_ACTIVITY_KIND_MEMSET) {
        WriteLine(*reinterpret_cast<const CUpti_ActivityMemset4*>(record), "fill");
      }
    }
    std::fflush(file_);
  }

  template <typename Activity>
  void WriteLine(const Activity& activity, const char* name) {
    std::fprintf(file_, "%llu %llu %s\n", static_cast<unsigned long long>(activity.start),
                 static_cast<unsigned long long>(activity.end), name);
  }

  const std::string& NameOf(const char* mangled) {
    const auto [entry, added] = names_.try_emplace(mangled);
    if (added) {
      int status = 0;
      char* name = abi::__cxa_demangle(mangled, nullptr, nullptr, &status);
      entry->second = status == 0 ? name : mangled;
      std::free(name);
    }
    return entry->second;
  }

  void* const library_ = lorad::kernels::testing::OpenCupti();
  std::FILE* file_ = nullptr;
  decltype(&cuptiActivityGetNextRecord) next_ = nullptr;
  decltype(&cuptiActivityFlushAll) flush_ = nullptr;
  std::mutex mutex_;
  std::map<std::string, std::string> names_;
};

// Never destroyed: CUPTI's thread may call until the very end.
Trace& TheTrace() {
  static Trace& trace = *new Trace;
  return trace;
}

void CUPTIAPI Trace::TakeBuffer(CUcontext, uint32_t, uint8_t* buffer, size_t, size_t valid) {
  TheTrace().Write(buffer, valid);
  std::free(buffer);
}

}  // namespace

// Called by the driver once the program uses it.
extern "C" int InitializeInjection() {
  if (!TheTrace().Start()) {
    std::fprintf(stderr, "kernel_trace: needs KERNEL_TRACE=FILE and CUPTI (libcupti.so.13)\n");
    return 0;
  }
  std::atexit([] { TheTrace().Finish(); });
  return 1;
}
