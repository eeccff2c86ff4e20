#include "kernels/cuda/attention/calls.h"

#include <algorithm>
#include <numeric>

namespace lorad::kernels::cuda {

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

AttentionUnits PlanUnits(std::span<const Segment> segments, int64_t unit_rows) {
  AttentionUnits plan;
  for (const Segment& segment : segments) {
    for (int64_t start = 0; start < segment.rows; start += unit_rows) {
      plan.as_keys.push_back({.first_row = static_cast<int32_t>(segment.first_row),
                              .rows = static_cast<int32_t>(segment.rows),
                              .start = static_cast<int32_t>(start),
                              .scratch_row = static_cast<int32_t>(plan.scratch_rows)});
    }
    plan.scratch_rows += sizes::RoundUp(segment.rows, sizes::kScratchRows);
  }
  plan.as_queries = plan.as_keys;
  const auto after = [](const AttentionUnit& unit) { return unit.rows - unit.start; };
  std::stable_sort(plan.as_keys.begin(), plan.as_keys.end(),
                   [&](const auto& a, const auto& b) { return after(a) > after(b); });
  const auto last = [&](const AttentionUnit& unit) {
    return std::min<int64_t>(unit.rows, unit.start + unit_rows);
  };
  std::stable_sort(plan.as_queries.begin(), plan.as_queries.end(),
                   [&](const auto& a, const auto& b) { return last(a) > last(b); });
  return plan;
}

}  // namespace lorad::kernels::cuda
