// CUPTI as tests and benchmarks use it: it comes with the toolkit and is looked up when the program
// runs, so that nothing links it.
#pragma once

#include <dlfcn.h>

namespace lorad::kernels::testing {

// The library, never closed, for the driver may call into it to the end; null where there is none.
inline void* OpenCupti() {
  for (const char* name : {"libcupti.so.13", "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.13",
                           "/usr/local/cuda/lib64/libcupti.so.13"}) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) return library;
  }
  return nullptr;
}

}  // namespace lorad::kernels::testing
