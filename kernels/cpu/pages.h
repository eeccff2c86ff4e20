// Memory for the CPU's arenas.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/arena.h"

namespace lorad::kernels::cpu {

// An arena of zeroed pages, all resident when it returns (large pages where the system gives them).
absl::StatusOr<std::unique_ptr<Arena>> MakePagedArena(int64_t bytes);

}  // namespace lorad::kernels::cpu
