// What the fake NCCL (fake_nccl.cc, a shared object) shows of itself to a test, under the symbol
// FakeNcclControl: a function that returns the one there is.
#pragma once

#include <atomic>

namespace lorad::worker {

struct FakeNccl {
  std::atomic<int> communicators = 0;  // that live
  std::atomic<int> aborted = 0;        // with a kernel under way
  std::atomic<int> kernels = 0;        // that have begun
  std::atomic<int> alone = 0;          // of them, those whose other side did not come in 5 s
  std::atomic<bool> refuses = false;   // to connect
  std::atomic<int> version = 22809;
};

}  // namespace lorad::worker
