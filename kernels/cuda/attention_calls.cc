#include "kernels/cuda/attention_calls.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace lorad::kernels::cuda {

int64_t BatchBucket(int64_t count) {
  assert(count >= 1);
  int64_t power = 1;
  while (power * 2 <= count) power *= 2;
  if (count == power) return power;
  return power >= 2 && count <= power / 2 * 3 ? power / 2 * 3 : power * 2;
}

int64_t LengthBucket(int64_t rows) {
  assert(rows >= 1);
  if (rows <= kLengthBucketMin) return kLengthBucketMin;
  constexpr int64_t kUnit = kLengthBucketMin / 2;
  return BatchBucket((rows + kUnit - 1) / kUnit) * kUnit;
}

int64_t BatchBucketMax(int64_t length_bucket, int64_t tokens) {
  const int64_t rows = std::min(kCallRows, LengthBucket(tokens));
  int64_t count = std::min(rows / length_bucket, kCallScores / (length_bucket * length_bucket));
  if (count <= 1) return 1;
  while (BatchBucket(count) != count) --count;
  return count;
}

AttentionCalls PlanAttention(std::span<const Segment> segments) {
  std::vector<size_t> order(segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return segments[a].rows > segments[b].rows; });
  const int64_t tokens = segments.empty() ? 0 : segments.back().first_row + segments.back().rows;
  AttentionCalls plan;
  for (size_t next = 0; next < order.size();) {
    AttentionCall call = {.first = static_cast<int64_t>(plan.rows.size()),
                          .rows = LengthBucket(segments[order[next]].rows)};
    const int64_t left = static_cast<int64_t>(order.size() - next);
    call.sequences = std::min(left, BatchBucketMax(call.rows, tokens));
    call.batch = BatchBucket(call.sequences);
    for (int64_t i = 0; i < call.sequences; ++i, ++next) {
      plan.first_rows.push_back(static_cast<int32_t>(segments[order[next]].first_row));
      plan.rows.push_back(static_cast<int32_t>(segments[order[next]].rows));
    }
    plan.first_rows.resize(static_cast<size_t>(call.first + call.batch), 0);
    plan.rows.resize(static_cast<size_t>(call.first + call.batch), 0);
    plan.calls.push_back(call);
  }
  return plan;
}

}  // namespace lorad::kernels::cuda
