// Limits of a worker's options, as lorad too has them.
#pragma once

#include <cstdint>

namespace lorad::worker {

// The least memory that a worker may use: no model and adapter, however small, do with less.
inline constexpr int64_t kMemoryBytesMin = int64_t{1} << 20;
inline constexpr int kThreadsMax = 256;

}  // namespace lorad::worker
