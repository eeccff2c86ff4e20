#pragma once

#include "tests/worker/transport/fake_nccl.h"
#include "worker/transport/nccl.h"

namespace lorad::worker {

inline constexpr char kFakeNcclFile[] = "tests/worker/transport/libfake_nccl.so";

// Of this process. Throws where it does not open.
const NcclLibrary& FakeNcclLibrary();
FakeNccl& FakeNcclState();

}  // namespace lorad::worker
