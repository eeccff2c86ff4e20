#include "planner/memory_cuda.h"

#include <algorithm>

namespace lorad::planner {
namespace {

// The engine's own numbers (kernels/cuda: lora/plan, attention/{attention,backward,calls},
// loss/linear_loss, gemm/gemm).
constexpr int64_t kArenaAlignment = 64;
constexpr int64_t kScratchAlignment = 256;
constexpr int64_t kRankAlignment = 16;
constexpr int64_t kMaskColumns = 256;
constexpr int64_t kLoraPartialBytes = int64_t{32} << 20;
constexpr int64_t kLoraCounterBytes = 4 * 2048;
constexpr int64_t kProductBytes = int64_t{32} << 20;
constexpr int64_t kCallRows = 8192;
constexpr int64_t kCallScores = int64_t{8} << 20;
constexpr int64_t kLengthBucketMin = 128;
constexpr int64_t kScoreBytesMax = int64_t{512} << 20;
constexpr int64_t kAttentionSpareBytes = int64_t{1} << 20;
constexpr int64_t kBackwardBox = 64;
constexpr int64_t kBackwardTakenFloats = 4;
constexpr int64_t kWordBytesMax = int64_t{704} << 20;
constexpr int64_t kTileRows = 256;
constexpr int64_t kTileColumns = 256;
constexpr int64_t kPartColumns = 192;

constexpr int64_t CeilDivide(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
constexpr int64_t RoundUp(int64_t value, int64_t unit) { return CeilDivide(value, unit) * unit; }
constexpr int64_t Taken(int64_t bytes) { return RoundUp(bytes, kArenaAlignment); }

// ---- adapters ----

int64_t LoraBytes(const ModelShape& model, const GroupShape& group) {
  int64_t features = 0, targets = 0;
  for (const ModelShape::Group& linear : model.groups) {
    int64_t outputs = 0;
    for (const ModelShape::Part& part : linear.parts) outputs += part.out_features;
    features = std::max({features, linear.in_features, outputs});
    targets = std::max(targets, static_cast<int64_t>(linear.parts.size()));
  }
  const int64_t tokens = group.capacity_tokens;
  const int64_t own_columns = targets * RoundUp(group.rank_max, kRankAlignment);
  const int64_t value = group.device.value_bytes;
  return Taken(tokens * 2 * group.slots_max * own_columns * value) +
         Taken(tokens * own_columns * value) +
         Taken(targets * tokens * RoundUp(features, kMaskColumns) / 8) + Taken(kLoraPartialBytes) +
         Taken(kLoraCounterBytes);
}

// ---- attention ----

// 128, 192, 256, 384, 512, 768, ...
int64_t LengthBucket(int64_t rows) {
  int64_t bucket = kLengthBucketMin;
  while (bucket < rows) bucket *= 2;
  const int64_t between = bucket / 4 * 3;
  return rows <= between && between > kLengthBucketMin ? between : bucket;
}

int64_t CallSequences(int64_t length_bucket, int64_t tokens_max) {
  const int64_t rows = std::min(kCallRows, LengthBucket(tokens_max));
  const int64_t squared = length_bucket * length_bucket;
  return std::max<int64_t>(std::min(rows / length_bucket, kCallScores / squared), 1);
}

// Key-value heads whose backward runs at once: a divisor, within kScoreBytesMax if it can be.
int64_t HeadsAtOnce(int64_t kv_heads, int64_t score_bytes) {
  int64_t divisor = std::clamp(kScoreBytesMax / score_bytes, int64_t{1}, kv_heads);
  while (kv_heads % divisor != 0) --divisor;
  return divisor;
}

// Two floats a query and head, rows of a sequence from a multiple of four on.
int64_t OwnBackwardBytes(const ModelShape& model, const GroupShape& group) {
  const int64_t tokens = std::max<int64_t>(group.capacity_tokens, 1);
  const int64_t stride = RoundUp(4 * tokens + kBackwardBox, 4);
  return 4 * (kBackwardTakenFloats + 2 * model.heads * stride);
}

int64_t AttentionBytes(const ModelShape& model, const GroupShape& group) {
  if (group.device.value_bytes == 4) return 0;  // kernels of our own
  if (model.head_size == 64 || model.head_size == 128) {
    return OwnBackwardBytes(model, group) + kAttentionSpareBytes;
  }
  const int64_t sharing = model.heads / model.kv_heads;
  const int64_t longest = LengthBucket(std::max<int64_t>(group.longest_sequence, 1));
  int64_t most = 0;
  for (int64_t rows = kLengthBucketMin; rows <= longest; rows = LengthBucket(rows + 1)) {
    const int64_t batch = CallSequences(rows, std::max<int64_t>(group.capacity_tokens, 1));
    const int64_t scores = 2 * batch * sharing * rows * RoundUp(rows, 128);
    const int64_t kv_heads = HeadsAtOnce(model.kv_heads, scores);
    const int64_t head_gradients = 2 * 2 * batch * rows * sharing * kv_heads * model.head_size;
    most = std::max(most, kv_heads * scores + head_gradients + 4 * batch * rows * model.heads);
  }
  return most + kAttentionSpareBytes;
}

// ---- head and loss ----

// Rows of tiles in a chunk: the most that the device makes in a turn of all its multiprocessors;
// the larger of equals.
int64_t LossRowTiles(int64_t wanted, int64_t row_bytes, int64_t column_tiles,
                     int64_t multiprocessors) {
  const int64_t at_once = std::max<int64_t>(multiprocessors / 2, 1);
  const int64_t affordable =
      std::clamp(kWordBytesMax / (row_bytes * kTileRows), int64_t{1}, wanted);
  const auto turns = [&](int64_t tiles) { return CeilDivide(tiles * column_tiles, at_once); };
  int64_t best = 1;
  for (int64_t tiles = 2; tiles <= affordable; ++tiles) {
    if (tiles * turns(best) >= best * turns(tiles)) best = tiles;
  }
  return best;
}

int64_t LossBytes(const ModelShape& model, const GroupShape& group) {
  const int64_t value = group.device.value_bytes;
  const int64_t columns = RoundUp(model.vocabulary, 64);
  const int64_t tokens = std::max<int64_t>(group.capacity_tokens, 1);
  const int64_t rows = kTileRows * LossRowTiles(CeilDivide(tokens, kTileRows), columns * value,
                                                CeilDivide(model.hidden, kTileColumns),
                                                group.device.multiprocessors);
  // Rows of x and of the gradient, as wide as the vocabulary, of three numbers and a pair, and a
  // pair for every part of the vocabulary; a mark.
  const int64_t row_bytes = 2 * RoundUp(model.hidden, 64) * value + columns * value + 4 * 3 + 8 +
                            8 * CeilDivide(model.vocabulary, kPartColumns);
  return rows * row_bytes + kScratchAlignment + kProductBytes;
}

}  // namespace

int64_t CudaWorkspaceBytes(const ModelShape& model, const GroupShape& group) {
  const int64_t scratch =
      std::max({AttentionBytes(model, group), LossBytes(model, group), kProductBytes});
  return LoraBytes(model, group) + Taken(scratch + kScratchAlignment);
}

}  // namespace lorad::planner
