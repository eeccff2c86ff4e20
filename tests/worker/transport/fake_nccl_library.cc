#include "tests/worker/transport/fake_nccl_library.h"

#include <dlfcn.h>

#include <memory>
#include <stdexcept>
#include <string>

namespace lorad::worker {

const NcclLibrary& FakeNcclLibrary() {
  static const std::unique_ptr<const NcclLibrary> library = [] {
    auto opened = NcclLibrary::Open(kFakeNcclFile);
    if (!opened.ok()) throw std::runtime_error(std::string(opened.status().message()));
    return *std::move(opened);
  }();
  return *library;
}

FakeNccl& FakeNcclState() {
  FakeNcclLibrary();
  void* const library = dlopen(kFakeNcclFile, RTLD_NOW | RTLD_LOCAL);
  void* const control = library == nullptr ? nullptr : dlsym(library, "FakeNcclControl");
  if (control == nullptr) throw std::runtime_error("the fake NCCL shows nothing of itself");
  return *reinterpret_cast<FakeNccl* (*)()>(control)();
}

}  // namespace lorad::worker
