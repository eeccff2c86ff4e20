// The estimate of a job's cost.
#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "planner/stages/blocks.h"
#include "server/core/catalog/model_shape.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/evaluations_left.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {

namespace {

v1::MemoryEstimate ToProto(const planner::GroupBytes& group,
                           const std::vector<planner::SlotBytes>& slots) {
  v1::MemoryEstimate memory;
  memory.set_weights(group.weights);
  memory.set_activations(group.activations);
  int64_t workspace = group.workspace, total = group.total();
  for (const planner::SlotBytes& slot : slots) {
    memory.set_adapters(memory.adapters() + slot.adapters);
    memory.set_optimizer(memory.optimizer() + slot.optimizer);
    workspace += slot.staging;
    total += slot.total();
  }
  memory.set_workspace(workspace);
  memory.set_total(total);
  return memory;
}

// Of the worker that has all of the model, or of the slowest that has a stage.
double SlownessOf(const Cluster& cluster, const LoneGroup& alone, const v1::JobEstimate& estimate) {
  if (estimate.stages().empty()) return alone.worker ? alone.worker->slowness : 1;
  double slowness = 0;
  for (const v1::StageEstimate& stage : estimate.stages()) {
    slowness = std::max(slowness, cluster.At(stage.worker()).slowness);
  }
  return slowness;
}

}  // namespace

absl::Status Core::State::FindLive(EstimateJob* content) const {
  if (content->name.empty()) return absl::OkStatus();
  const JobState* job = jobs_.FindWhole(content->name);
  if (job && IsLive(job->state())) {
    content->job = job->job();
    return absl::OkStatus();
  }
  if (!jobs_.FindEntry(content->name)) return NotFound(kJobKind, content->name);
  return PreconditionFailed("JOB_ENDED", absl::StrCat("job ", content->name),
                            absl::StrCat("job '", content->name,
                                         "' has ended: `lora show` says "
                                         "what it took"));
}

void Core::State::On(uint64_t request, const EstimateJob& asked) {
  EstimateJob content = asked;
  if (absl::Status status = FindLive(&content); !status.ok()) return turn_.Fail(request, status);
  if (absl::Status status = CheckReferences(content.job); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (!rows_.Ensure(content.job)) return rows_.Wait(request, content);
  if (content.wait_us > 0 && cluster_.empty() && !stopping_) {
    return rows_.Hold(request, content);
  }
  absl::StatusOr<v1::JobEstimate> estimate = Estimate(content.job);
  estimate.ok() ? turn_.Answer(request, *std::move(estimate))
                : turn_.Fail(request, estimate.status());
}

void Core::State::AnswerEstimates() {
  for (RowChecks::HeldEstimate& held : rows_.TakeHeld(!cluster_.empty() || stopping_)) {
    held.content.wait_us = 0;
    On(held.request, held.content);
  }
}

void Core::State::AddMemory(const std::string& job, const planner::QueuedJob& queued,
                            v1::JobEstimate* estimate) const {
  for (const auto& [name, worker] : cluster_.all()) {
    if (worker.connection == 0) continue;
    v1::WorkerEstimate& entry = *estimate->add_workers();
    const LoneGroup alone = cluster_.GroupAloneOn(&worker, queued);
    entry.set_worker(name);
    entry.set_budget_bytes(alone.budget_bytes);
    *entry.mutable_alone() = ToProto(alone.group, {alone.slot});
    entry.set_fits_alone(queued.stages < 2 && planner::Fits(alone.total(), alone.budget_bytes));
    const GroupState* group = groups_.Find(worker.group);
    if (!group || group->base_model != queued.base_model || group->stages.size() > 1) continue;
    entry.set_group(group->name);
    planner::GroupShape shape = group->shape;
    shape.longest_sequence = std::max(shape.longest_sequence, queued.longest_sequence);
    shape.rank_max = std::max(shape.rank_max, queued.adapter->rank_max());
    shape.capacity_tokens = std::max(shape.capacity_tokens, shape.longest_sequence);
    entry.set_forms_again(shape.longest_sequence != group->shape.longest_sequence ||
                          shape.rank_max != group->shape.rank_max);
    std::vector<planner::SlotBytes> slots = {alone.slot};
    for (const auto& [member_name, member] : group->members) {
      if (member_name == job || member.leaving || member.departing) continue;
      slots.push_back(planner::BytesOfSlot(*queued.model, member.adapter, shape.device));
    }
    *entry.mutable_beside() = ToProto(planner::BytesOfGroup(*queued.model, shape), slots);
    entry.set_fits_beside(std::ssize(slots) <= shape.slots_max &&
                          planner::Fits(entry.beside().total(), alone.budget_bytes));
  }
}

std::optional<planner::Placement> Core::State::AddStages(const planner::QueuedJob& queued,
                                                         v1::JobEstimate* estimate) const {
  const std::vector<planner::WorkerView> workers = cluster_.Views();
  auto placement = StagesAlone(queued, workers);
  if (!placement) return std::nullopt;
  estimate->set_fits(placement->fits);
  for (size_t s = 0; s < placement->workers.size(); ++s) {
    const planner::WorkerView& worker = workers[placement->workers[s]];
    v1::StageEstimate& stage = *estimate->add_stages();
    stage.set_worker(worker.name);
    stage.set_first_block(placement->ranges[s].first_block);
    stage.set_end_block(placement->ranges[s].end_block);
    stage.set_bytes(placement->bytes[s]);
    stage.set_budget_bytes(worker.budget_bytes);
  }
  return placement;
}

absl::StatusOr<v1::JobEstimate> Core::State::Estimate(const v1::Job& job) {
  JobState state;
  records::JobRecord& record = state.record;
  *record.mutable_job() = job;
  if (const JobState* live = jobs_.FindWhole(job.name())) {
    record.set_evaluated_end(live->record.evaluated_end());
    state.evaluation = live->evaluation;
  }
  v1::JobError error;
  if (absl::Status status = rows_.SumUp(record, &error); !status.ok()) return status;
  const planner::QueuedJob queued = Alone(job, record.longest_tokens());
  const LoneGroup alone = cluster_.GroupAlone(queued);
  v1::JobEstimate estimate;
  *estimate.mutable_peak_memory_bytes() = ToProto(alone.group, {alone.slot});
  estimate.set_budget_bytes(alone.budget_bytes);
  estimate.set_fits(queued.stages < 2 && planner::Fits(alone.total(), alone.budget_bytes));
  std::optional<planner::Placement> on_several;
  if (!estimate.fits()) on_several = AddStages(queued, &estimate);
  const planner::GroupShape& shape = on_several ? on_several->shape : alone.shape;
  estimate.set_recomputation(server::ToProto(shape.recomputation));
  AddMemory(job.name(), queued, &estimate);

  const v1::Job& complete = record.job();
  estimate.set_total_steps(complete.total_steps());
  estimate.set_total_tokens(complete.total_tokens());
  estimate.set_truncated_rows(complete.truncated_rows());
  estimate.set_skipped_rows(complete.skipped_rows());
  *estimate.mutable_warnings() = complete.warnings();
  if (queued.stages > 1 && !on_several && !cluster_.empty()) {
    estimate.add_warnings(planner::WorkersLackFor(queued.stages));
  }
  const auto steps = static_cast<double>(std::max<int64_t>(complete.total_steps(), 1));
  const double of_step = static_cast<double>(complete.total_tokens()) / steps;
  const planner::TimeModel& times =
      cluster_.fits().TimesOf(job.base_model(), *queued.model, alone.worker, shape.capacity_tokens);
  const int64_t parameters = planner::AdapterParameters(*queued.model, *queued.adapter);
  const double squares = complete.total_squared_lengths() / steps;
  const planner::Workload step = planner::StepOf(of_step, squares, parameters);
  const planner::Workload passes = planner::WorkloadOf(of_step, squares, parameters);
  const double left = steps - static_cast<double>(job.step());
  const double of_each = std::ceil(of_step / static_cast<double>(shape.capacity_tokens));
  double ms = left * times.TrainMs(step, of_each);
  if (shape.recomputation == planner::Recomputation::kBlocks) {
    ms += left * times.EvaluateMs(passes, of_each);  // forward twice
  }
  if (on_several) {
    ms *= planner::FillAndDrainFactor(static_cast<int64_t>(of_step), shape.capacity_tokens,
                                      on_several->ranges.size());
  }
  const planner::EvaluationWork evaluations = EvaluationsLeft(state, options_.evaluate_sequences);
  if (evaluations.parts > 0) {
    const auto tokens = static_cast<double>(evaluations.tokens);
    ms += times.EvaluateMs(planner::WorkloadOf(tokens, evaluations.squared_lengths, parameters),
                           std::max(static_cast<double>(evaluations.parts),
                                    tokens / static_cast<double>(shape.capacity_tokens)));
  }
  if (on_several) {  // what stages wait aside
    ms *= planner::SlowestShare(*queued.model, on_several->ranges, queued.longest_sequence / 2);
  }
  estimate.set_seconds(SlownessOf(cluster_, alone, estimate) * ms / 1000);
  estimate.set_seconds_basis(times.BasisOf(1 / std::max(of_each, 1.0) * passes));
  if (job.name().empty()) {
    record.set_order(std::numeric_limits<int64_t>::max());
    state.since_us = turn_.now_us();
  }
  AddForecast(state, &estimate);
  return estimate;
}

}  // namespace lorad::server
