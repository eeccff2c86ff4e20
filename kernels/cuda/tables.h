// A microbatch's description as kernels read it: plain arrays in device memory. Also for .cu files.
#ifndef LORAD_KERNELS_CUDA_TABLES_H_
#define LORAD_KERNELS_CUDA_TABLES_H_

#include <cstdint>

namespace lorad::kernels::cuda {

// At most kChunkTokens rows of one segment, counted from its sequence's first token: the unit of
// sums over tokens.
struct Chunk {
  int32_t segment = 0;
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
};

// Segment of batch.h, packed.
struct DeviceSegment {
  int32_t first_row = 0;
  int32_t rows = 0;
  int32_t first_position = 0;
  int32_t slot = -1;  // -1 also where the mode is kReference
  int32_t train = 0;  // 1: dropout on, gradients formed
  uint32_t step = 0;
  uint32_t sequence = 0;
  uint32_t unused = 0;
  uint64_t seed = 0;
};

struct BatchTables {
  int32_t tokens = 0;     // T
  int32_t sequences = 0;  // B
  int32_t chunk_count = 0;
  int32_t loss_count = 0;  // n

  const int32_t* ids = nullptr;               // [T]
  const int32_t* positions = nullptr;         // [T]
  const int32_t* row_segment = nullptr;       // [T]
  const int32_t* loss_of_row = nullptr;       // [T]: index of its loss row if that trains, else -1
  const DeviceSegment* segments = nullptr;    // [B]
  const int32_t* sequence_offsets = nullptr;  // [B + 1]: first rows, then T
  const Chunk* chunks = nullptr;              // in row order
  const int32_t* loss_rows = nullptr;         // [n]
  const int32_t* loss_targets = nullptr;      // [n]
  const int32_t* loss_trained = nullptr;      // [n]: 1 if its segment trains
};

}  // namespace lorad::kernels::cuda

#endif  // LORAD_KERNELS_CUDA_TABLES_H_
