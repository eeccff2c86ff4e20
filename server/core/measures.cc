// What groups have done, moment by moment, on the coordinator's clock.
#include <algorithm>
#include <string>
#include <vector>

#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr size_t kTracedByDefault = 256;

}  // namespace

std::vector<planner::StageMoments> Core::State::MomentsOf(const GroupState& group,
                                                          size_t count) const {
  std::vector<planner::StageMoments> stages;
  for (const StageState& stage : group.stages) {
    const int64_t offset_us = cluster_.ClockOffsetUs(WorkerOf(stage));
    stages.push_back(NewestOf(stage.measured, count, static_cast<double>(offset_us) / 1e3));
  }
  return stages;
}

void Core::State::AddStages(const GroupState& group, const planner::Shares& shares,
                            google::protobuf::RepeatedPtrField<v1::GroupStage>* views) const {
  for (size_t s = 0; s < group.stages.size(); ++s) {
    const StageState& stage = group.stages[s];
    const worker::v1::Hello& hello = WorkerOf(stage).hello;
    v1::GroupStage& view = *views->Add();
    view.set_worker(stage.worker);
    view.set_host(hello.host());
    view.set_transport(hello.transport());
    // Of a group of one nobody asks for a range.
    const planner::StageRange range =
        group.stages.size() > 1 ? stage.range
                                : planner::WholeModel(*catalog_.Model(group.base_model).shape);
    view.set_first_block(range.first_block);
    view.set_end_block(range.end_block);
    view.set_reserved_bytes(stage.reserved_bytes);
    view.set_busy(shares.stages[s].busy);
    view.set_waiting(shares.stages[s].waiting);
    view.set_transfer(shares.stages[s].transfer);
  }
}

void Core::State::On(uint64_t request, const v1::GetTraceRequest& content) {
  absl::StatusOr<MeasuredGroup> measured = Measure(content);
  measured.ok() ? turn_.Answer(request, *std::move(measured))
                : turn_.Fail(request, measured.status());
}

absl::StatusOr<MeasuredGroup> Core::State::Measure(const v1::GetTraceRequest& content) const {
  if (!jobs_.FindEntry(content.job())) return NotFound(kJobKind, content.job());
  const JobState* job = jobs_.FindWhole(content.job());
  const GroupState* group = nullptr;
  for (const auto& [name, candidate] : groups_.all()) {
    const bool has_it = candidate.members.contains(content.job());
    if (has_it && job && IsLive(job->state())) group = &candidate;
  }
  if (!group || group->first().measured.empty()) {
    return PreconditionFailed(
        "JOB_NOT_TRAINING", absl::StrCat("job ", content.job()),
        absl::StrCat("job '", content.job(),
                     "' has no microbatch behind it in the group that it is in, if it is in any: a "
                     "trace is of jobs that train; `lora watch` says when it does"));
  }
  const size_t count =
      content.microbatches() > 0 ? static_cast<size_t>(content.microbatches()) : kTracedByDefault;
  MeasuredGroup measured;
  measured.stages = MomentsOf(*group, count);
  const planner::Shares shares = planner::SharesOf(measured.stages);
  measured.trace.set_group(group->name);
  measured.trace.set_epoch(group->epoch);
  measured.trace.set_base_model(group->base_model);
  measured.trace.set_bubble_ratio(shares.bubble_ratio);
  AddStages(*group, shares, measured.trace.mutable_stages());
  const auto& kept = group->last().measured;
  for (size_t i = kept.size() - std::min(count, kept.size()); i < kept.size(); ++i) {
    v1::Trace::Microbatch& view = *measured.trace.add_microbatches();
    view.set_number(kept[i].moments.number);
    view.set_tokens(kept[i].tokens);
    view.mutable_jobs()->Add(kept[i].jobs.begin(), kept[i].jobs.end());
  }
  return measured;
}

}  // namespace lorad::server
