// A microbatch's description as kernels read it: plain arrays in device memory. Also for .cu files.
#pragma once

#include <cstdint>

namespace lorad::kernels::cuda {

struct BatchTables {
  int32_t tokens = 0;                     // T
  int32_t loss_count = 0;                 // n
  const int32_t* ids = nullptr;           // [T]
  const int32_t* positions = nullptr;     // [T]: rows of the rope tables
  const int32_t* loss_of_row = nullptr;   // [T]: index of its loss row if that trains, else -1
  const int32_t* loss_rows = nullptr;     // [n]
  const int32_t* loss_targets = nullptr;  // [n]
};

}  // namespace lorad::kernels::cuda
