// How large a group is formed: for one job alone, or with another beside those that it has
// (schedule.h, state.h).
#include <algorithm>

#include "planner/schedule/schedule.h"
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

// The tokens of a microbatch, whose sequences may want more.
struct TokenRange {
  int64_t least = 0;
  int64_t most = 0;
};
TokenRange TokensOf(const DeviceShape& device, int64_t microbatch_tokens) {
  if (microbatch_tokens > 0) return {microbatch_tokens, microbatch_tokens};
  return {kMicrobatchTokens,
          device.kind == DeviceKind::kCuda ? kMicrobatchTokensOfGpu : kMicrobatchTokens};
}

GroupShape Grown(const GroupShape& shape, const QueuedJob& job, int64_t microbatch_tokens) {
  GroupShape larger = shape;
  larger.longest_sequence = std::max(shape.longest_sequence, job.longest_sequence);
  larger.capacity_tokens =
      std::max(shape.capacity_tokens, CapacityFor(microbatch_tokens, larger.longest_sequence));
  while (larger.rank_max < job.adapter.rank) larger.rank_max *= 2;
  return larger;
}

}  // namespace

int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence) {
  return std::max(microbatch_tokens, longest_sequence);
}

int64_t SlotOf(const QueuedJob& job, const DeviceShape& device) {
  return BytesOfSlot(job.model, job.adapter, device).total();
}

bool Covers(const GroupShape& shape, int64_t longest_sequence, int64_t rank) {
  return longest_sequence <= shape.longest_sequence && rank <= shape.rank_max;
}

int64_t AloneBytes(const QueuedJob& job, const GroupShape& shape) {
  return BytesOfGroup(job.model, shape).total() + SlotOf(job, shape.device);
}

GroupShape ShapeAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                      int64_t microbatch_tokens) {
  const TokenRange tokens = TokensOf(device, microbatch_tokens);
  const int64_t others_bytes = (kAdaptersOfGpu - 1) * SlotOf(job, device);
  for (int64_t many = tokens.most; many > tokens.least; many /= 2) {
    const GroupShape shape = Grown(EmptyShape(device), job, many);
    if (Fits(AloneBytes(job, shape) + others_bytes, budget_bytes)) return shape;
  }
  GroupShape shape = Grown(EmptyShape(device), job, tokens.least);
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (Fits(AloneBytes(job, shape), budget_bytes)) break;
    shape.recomputation = std::max(shape.recomputation, more);
  }
  return shape;
}

GroupShape ShapeWith(const GroupState& group, const QueuedJob& job) {
  const int64_t least = TokensOf(group.shape.device, group.microbatch_tokens).least;
  GroupShape shape = Grown(group.shape, job, least);
  const GroupShape alone =
      ShapeAlone(job, shape.device, group.budget_bytes, group.microbatch_tokens);
  shape.recomputation = std::max(shape.recomputation, alone.recomputation);
  const int64_t shortest = CapacityFor(least, shape.longest_sequence);
  while (shape.capacity_tokens > shortest && !FitsIn(group, shape, job)) {
    shape.capacity_tokens = std::max(shortest, shape.capacity_tokens / 2);
  }
  // One of its jobs may have ended since it was decided to form the group again: nobody is put out.
  for (const Recomputation more : {Recomputation::kProducts, Recomputation::kBlocks}) {
    if (!job.resumes || FitsIn(group, shape, job)) break;
    shape.recomputation = std::max(shape.recomputation, more);
  }
  return shape;
}

bool FitsIn(const GroupState& group, const GroupShape& shape, const QueuedJob& job) {
  return Fits(
      BytesOfGroup(*group.model, shape).total() + group.slot_bytes + SlotOf(job, shape.device),
      group.budget_bytes);
}

}  // namespace lorad::planner
