#include "kernels/cuda/attention_calls.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace lorad::kernels::cuda {

int64_t LengthBucket(int64_t rows) {
  assert(rows >= 1);
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

AttentionCalls PlanAttention(std::span<const Segment> segments, int64_t tokens_max) {
  std::vector<size_t> order(segments.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return segments[a].rows > segments[b].rows; });
  AttentionCalls plan;
  for (size_t next = 0; next < order.size();) {
    AttentionCall call = {.first = static_cast<int64_t>(plan.rows.size()),
                          .rows = LengthBucket(segments[order[next]].rows)};
    const int64_t left = static_cast<int64_t>(order.size() - next);
    call.batch = CallSequences(call.rows, tokens_max);
    call.sequences = std::min(left, call.batch);
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
