// The reports of workers. A report counts once, in sequence, and only where it fits what was asked
// (report_checks.h); it is acknowledged once what it says is persisted.
#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/row_sums.h"
#include "server/core/cluster/report_checks.h"
#include "server/core/events/kept.h"
#include "server/core/jobs/evaluations_left.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/rules/due.h"
#include "server/core/rules/failures.h"
#include "server/core/state.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// So many bytes of a worker's text are kept, in events and errors of jobs.
constexpr size_t kMessageTextMax = 2000;

constexpr int64_t kForecastAgainUs = 5'000'000;

// Of the steps that it still has to do; of one that ends before its last step in the mean.
double TokensToTrain(const v1::Job& job) {
  const int64_t steps = EndStep(job) - job.step();
  if (steps <= 0) return 0;
  if (EndStep(job) < job.total_steps()) {
    return static_cast<double>(steps) * static_cast<double>(job.total_tokens()) /
           static_cast<double>(job.total_steps());
  }
  return static_cast<double>(std::max<int64_t>(job.total_tokens() - job.tokens(), 0));
}

bool SameBits(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace

void Core::State::OnReport(GroupState& group, StageState& stage, const worker::v1::Report& report) {
  WorkerState& worker = WorkerOf(stage);
  // The group may be gone by then.
  const auto acknowledge = [this, &worker, epoch = group.epoch](int64_t number) {
    groups_changed_ = true;  // what is acknowledged does not come again
    if (worker.connection == 0) return;
    worker::v1::CoordinatorMessage message;
    message.mutable_acknowledge()->set_epoch(epoch);
    message.mutable_acknowledge()->set_number(number);
    turn_.Do(Send{worker.connection, std::move(message)});
  };
  if (report.number() > 0 && report.number() <= stage.last_report) {
    return acknowledge(stage.last_report);
  }
  if (report.number() != stage.last_report + 1) {
    return CloseLiar(worker,
                     absl::StrCat("report ", report.number(), " came after ", stage.last_report));
  }
  if (const std::string wrong = WhatIsWrong(report, group, stage); !wrong.empty()) {
    return CloseLiar(worker, wrong);
  }
  stage.last_report = report.number();
  group.heard_us = turn_.now_us();
  using Report = worker::v1::Report;
  switch (report.content_case()) {
    case Report::kGroupFormed:
      OnGroupFormed(group, stage, report.group_formed());
      break;
    case Report::kGroupFailed:
      OnGroupFailed(group, stage, report.group_failed());
      break;
    case Report::kSlotLoaded:
      OnSlotLoaded(group, stage, report.slot_loaded());
      break;
    case Report::kSlotFailed:
      OnSlotFailed(group, stage, report.slot_failed());
      break;
    case Report::kSlotFreed:
      OnSlotFreed(group, stage, report.slot_freed());
      break;
    case Report::kStepDone:
      OnStepDone(group, report.step_done());
      break;
    case Report::kEvaluateDone:
      OnEvaluateDone(group, report.evaluate_done());
      break;
    case Report::kMicrobatchDone:
      // Frequent, and nothing of it is persisted: acknowledged with the report that follows.
      return OnMicrobatchDone(group, stage, report.microbatch_done());
    case Report::kWindowDone:
      OnWindowDone(group, stage);
      break;
    case Report::kGenerated:
      TakeToken(stage.orders, {report.generated().generation(), report.generated().number()});
      OnGenerated(report.generated());
      break;
    case Report::kNotFinite:
      OnNotFinite(group, report.not_finite());
      break;
    case Report::kConnected:
      OnStageConnected(group, stage, report.connected());
      break;
    case Report::kSaveDelayed:
      OnSaveDelayed(stage, report.save_delayed());
      break;
    case Report::kSaved:  // the shard's own call says it, and is what counts
    case Report::CONTENT_NOT_SET:
      break;
  }
  acknowledge(report.number());
}

void Core::State::OnSaveDelayed(const StageState& stage, const worker::v1::SaveDelayed& delayed) {
  JobState* job = jobs_.Find(delayed.job());
  if (!job || job->job().group() != WorkerOf(stage).group) return;
  if (!job->saved_tokens.contains(delayed.step()) || delayed.step() <= job->unwritten_step) return;
  jobs_.TellUnwritten(
      *job, delayed.step(),
      absl::StrCat("worker '", stage.worker, "' cannot send the checkpoint of step ",
                   delayed.step(), ": ", Quotable(delayed.message(), kMessageTextMax)));
}

// ---- slots ----

// Of several stages it is loaded once all have said so, and one that could not ends the membership
// of the job: what the others have loaded is freed.
void Core::State::OnSlotLoaded(GroupState& group, StageState& stage,
                               const worker::v1::SlotLoaded& loaded) {
  TakeLoad(stage.orders, loaded.job());
  WorkerOf(stage).memory_rest.times = 0;
  const auto found = group.members.find(loaded.job());
  if (found == group.members.end() || IsLoading(group, loaded.job())) return;
  found->second.slot = Member::Slot::kLoaded;
  if (found->second.load_failed) return;
  GroupTable::CountBytes(group, *catalog_.Model(group.base_model).shape);
  JobState* job = jobs_.Find(loaded.job());
  if (!job || job->state() != v1::Job::PREPARING) return;
  if (job->job().step() >= EndStep(job->job())) {
    jobs_.Transition(*job, v1::Job::FINALIZING, "its steps are done; what is left is evaluated");
    MaybeFinish(*job);  // its last checkpoint may have been recorded after it lost its worker
  } else {
    jobs_.Transition(*job, v1::Job::RUNNING,
                     absl::StrCat("runs in ", group.name, " from step ", job->job().step()));
    NoteStart(*job);
  }
}

void Core::State::OnSlotFailed(GroupState& group, StageState& stage,
                               const worker::v1::SlotFailed& failed) {
  TakeLoad(stage.orders, failed.job());
  const auto member = group.members.find(failed.job());
  if (member == group.members.end()) return;
  WorkerState& worker = WorkerOf(stage);
  const std::string message = Quotable(failed.message(), kMessageTextMax);
  if (Generations::IsGuest(failed.job())) FailGuest(failed, worker, message);
  JobState* job = jobs_.Find(failed.job());
  // What an ended job began with may be deleted.
  const std::string content = job && IsLive(job->state()) ? ContentOf(job->job()) : "";
  if (job && IsLive(job->state()) && failed.reason() == kCheckpointCorrupt && content.empty()) {
    return CloseLiar(
        worker, absl::StrCat("a damaged checkpoint of job '", job->name(), "', which has none"));
  }
  if (failed.reason() == kMemoryTaken) {
    cluster_.RestForMemory(worker, message);
    if (job && job->state() == v1::Job::PREPARING) jobs_.Transition(*job, v1::Job::QUEUED, message);
  } else if (job && IsPlaced(job->state()) && job->state() != v1::Job::PAUSING) {
    if (failed.reason() == kMemory) {
      cluster_.RestForMemory(worker, message);
      TakeTooLarge(*job, group, stage.worker, message);
    } else if (!content.empty()) {
      LookAtContent(*job, stage.worker, failed.reason(), message);
    } else {
      Postpone(*job, failed.reason(), message);
    }
  }
  if (group.stages.size() > 1) {
    member->second.leaving = member->second.load_failed = true;
    if (!IsLoading(group, failed.job())) member->second.slot = Member::Slot::kLoaded;
  } else {
    EndMember(group, failed.job());
  }
  // A group without jobs may have its memory for shorter microbatches.
  if (failed.reason() == kMemoryTaken && group.members.empty() && options_.microbatch_tokens == 0 &&
      group.shape.capacity_tokens > planner::kMicrobatchTokens) {
    BeginCut(group, GroupState::Then::kReform, message);
  }
}

void Core::State::OnSlotFreed(GroupState& group, StageState& stage,
                              const worker::v1::SlotFreed& freed) {
  if (stage.orders.freeing.erase(freed.job()) == 0) return TakeUndone(stage.orders, freed.job());
  if (!IsFreeing(group, freed.job())) EndMember(group, freed.job());
}

// ---- training ----

void Core::State::KeepMetrics(JobState& job, const worker::v1::StepDone& done) {
  v1::StepMetrics row;
  row.set_step(done.step());
  row.set_loss(done.loss());
  row.set_grad_norm(done.grad_norm());
  row.set_learning_rate(done.learning_rate());
  row.set_trained_tokens(done.trained_tokens());
  row.set_tokens(done.tokens());
  row.set_step_time_ms(done.step_time_ms());
  const bool differed = std::exchange(job.differs, false);
  if (done.step() > job.record.furthest_step()) {
    turn_.Put(storage::PutEntry(kMetricsSeries, job.name(), done.step(), row.SerializeAsString()));
    job.metrics[done.step()] = std::move(row);
    if (job.metrics.size() > kMetricRowsKept) job.metrics.erase(job.metrics.begin());
    return;
  }
  const auto before = job.metrics.find(done.step());
  if (before == job.metrics.end()) return;  // of long ago (kMetricRowsKept)
  const v1::StepMetrics& first = before->second;
  if (SameBits(first.loss(), row.loss()) && SameBits(first.grad_norm(), row.grad_norm()) &&
      SameBits(first.learning_rate(), row.learning_rate()) &&
      first.trained_tokens() == row.trained_tokens() && first.tokens() == row.tokens()) {
    return;
  }
  // Either this machine computes differently, or we have a defect; the first row stays. Of several
  // in a row the first is told: the others follow from it.
  job.differs = true;
  if (differed) return;
  const std::string what = absl::StrCat(
      "step ", done.step(), " was executed again with another result: loss ", first.loss(),
      " then ", row.loss(), ", gradient norm ", first.grad_norm(), " then ", row.grad_norm());
  jobs_.AddEvent(job, "NUMERICS_MISMATCH", what);
  turn_.Warn(absl::StrCat("job '", job.name(), "': NUMERICS_MISMATCH: ", what));
}

// A step, or a part of an evaluation, of so many tokens is done: how fast the group is shows as it
// goes, and how long the job still takes. Its forecast knows who ends before it or comes beside it;
// its own pace counts where that of its group was not known then, and where it ends before its last
// step.
void Core::State::CountUnit(const GroupState& group, JobState& job, int64_t trained,
                            double evaluated) {
  if (turn_.now_us() - forecasts_.made_us >= kForecastAgainUs) forecasts_.wanted = true;
  v1::Job& view = job.job();
  const planner::EvaluationWork left = EvaluationsLeft(job, options_.evaluate_sequences);
  const double share = evaluated > 0 || left.tokens > 0
                           ? EvaluatedShare(group.base_model, WorkerOf(group.first()))
                           : 0;
  job.work.Add(turn_.now_us(), static_cast<double>(trained) + share * evaluated);
  const double tokens_left = TokensToTrain(view) + share * static_cast<double>(left.tokens);
  const double rate = job.work.PerSecond(job.work.Done());
  const bool foresees = job.forecast.paced && EndStep(view) == view.total_steps();
  const double age_s = static_cast<double>(turn_.now_us() - job.forecast.made_us) / 1e6;
  if (tokens_left <= 0) {
    view.set_seconds_left(0);
  } else if (foresees && job.forecast.end_s > age_s) {
    view.set_seconds_left(job.forecast.end_s - age_s);
  } else if (rate > 0) {
    view.set_seconds_left(tokens_left / rate);
  }
}

void Core::State::OnStepDone(GroupState& group, const worker::v1::StepDone& done) {
  TakeStep(group.last().orders, done.job());
  const auto found = group.members.find(done.job());
  JobState* job = jobs_.Find(done.job());
  // Further work of an ended job is not published.
  const bool counts = job && (IsPlaced(job->state()) || job->state() == v1::Job::CANCELLING);
  if (found == group.members.end() || !counts) return;
  found->second.done_step = done.step();
  if (job->trains_since_us == 0) job->trains_since_us = turn_.now_us();
  auto& lines = found->second.lines;
  lines.erase(lines.begin(), lines.upper_bound(done.step()));
  found->second.save_us = turn_.now_us();
  KeepMetrics(*job, done);
  v1::Job& view = job->job();
  view.set_step(done.step());
  view.set_tokens(view.tokens() + done.tokens());
  SetTotals(job->record);
  if (SaveDue(view, done.step())) job->saved_tokens[done.step()] = view.tokens();
  view.set_loss(done.loss());
  view.set_grad_norm(done.grad_norm());
  view.set_learning_rate(done.learning_rate());
  view.set_epoch(EpochAt(job->record, done.step()));
  job->pace.Add(turn_.now_us(), static_cast<double>(done.tokens()));
  const double rate = job->pace.PerSecond(job->pace.Done());
  if (rate > 0) view.set_tokens_per_second(rate);
  const planner::ModelShape& shape = *catalog_.Model(group.base_model).shape;
  group.pace.AddToLast(
      planner::OptimizerOf(planner::AdapterParameters(shape, found->second.adapter)));
  CountUnit(group, *job, done.tokens(), 0);
  if (done.step() > job->record.furthest_step()) {
    job->record.set_furthest_step(done.step());
    job->record.set_losses_without_progress(0);
    job->record.set_losses_alone(0);
    job->record.set_losses_redone(0);
    job->failed_on.clear();
    if (job->record.company_max() > 0) {
      job->record.set_company_max(0);
      job->record.set_alone(false);
      jobs_.Touch(*job);
      turn_.WantSchedule();  // others may join it again
    }
    jobs_.EndPassing(*job);
  }
  // Of a group that came back more was at hand than was known.
  if (view.finish_step() > 0 && done.step() > view.finish_step()) {
    view.set_finish_step(done.step());
    jobs_.Touch(*job);  // the record has it: what is progress alone may be lost
  }
  if (done.step() == EndStep(view) && IsPlaced(job->state()) &&
      job->state() != v1::Job::FINALIZING) {
    found->second.departing = false;  // it ends here instead
    jobs_.Transition(*job, v1::Job::FINALIZING,
                     view.finish_step() > 0 ? "the last step that it was to finish is done"
                                            : "its last step is done");
  }
  jobs_.TouchProgress(*job);
  Refute(*job, group, done.step(), false);
}

void Core::State::OnEvaluateDone(GroupState& group, const worker::v1::EvaluateDone& done) {
  for (const int64_t sequence : done.sequence()) {
    TakeSequence(group.last().orders, done.job(), done.step(), sequence);
  }
  JobState* job = jobs_.Find(done.job());
  if (!group.members.contains(done.job()) || !job || !IsPlaced(job->state())) return;
  if (done.step() < job->record.evaluated_end()) return;
  Evaluation& evaluation = job->evaluation;
  if (evaluation.step != done.step()) evaluation = {.step = done.step()};
  for (int i = 0; i < done.sequence_size(); ++i) {
    if (done.sequence(i) < evaluation.next) continue;  // reported before a cut, and again after it
    evaluation.ahead[done.sequence(i)] = {done.loss_sum(i), done.trained_tokens(i)};
  }
  SequenceLoss& sum = evaluation.sum;
  const int64_t before = evaluation.next;
  for (auto first = evaluation.ahead.begin();
       first != evaluation.ahead.end() && first->first == evaluation.next;
       first = evaluation.ahead.erase(first)) {
    sum.loss_sum += first->second.loss_sum;
    sum.trained_tokens += first->second.trained_tokens;
    evaluation.next++;
  }
  CountUnit(group, *job, 0, ValidationTokens(*job, evaluation.next - before));
  if (evaluation.next < job->record.validation_rows()) return jobs_.TouchProgress(*job);
  v1::EvaluationMetrics row;
  row.set_step(done.step());
  row.set_trained_tokens(sum.trained_tokens);
  row.set_validation_loss(sum.loss_sum /
                          static_cast<double>(std::max<int64_t>(sum.trained_tokens, 1)));
  evaluation = {};
  if (done.step() > 0) {
    (*job->record.mutable_validation_losses())[done.step()] = row.validation_loss();
  }
  turn_.Put(
      storage::PutEntry(kEvaluationSeries, job->name(), done.step(), row.SerializeAsString()));
  job->record.set_evaluated_end(done.step() + 1);
  job->job().set_validation_loss(row.validation_loss());
  if (done.step() == 0) job->job().set_initial_validation_loss(row.validation_loss());
  jobs_.Touch(*job);
  Refute(*job, group, row.step(), true);
  MaybeFinish(*job);
  DropCheckpoints(*job);
}

void Core::State::MaybeFinish(JobState& job) {
  const v1::Job& view = job.job();
  if (job.state() != v1::Job::FINALIZING) return;
  if (view.last_checkpoint_step() != EndStep(view)) return;
  if (HasEvaluationsLeft(job)) return;
  GroupState* group = GroupOf(job);
  jobs_.Transition(job, v1::Job::SUCCEEDED, WhatItHas(view));
  NoteEnd(job);
  GroupTable::Leave(group, job.name());
}

// ---- pace ----

void Core::State::OnMicrobatchDone(GroupState& group, StageState& stage,
                                   const worker::v1::MicrobatchDone& done) {
  const auto [jobs, work, sent_us] = TakeMicrobatch(stage.orders, done.microbatch());
  KeepMeasured(done, jobs, &stage.measured);
  if (&stage == &group.last() && group.stages.size() > 1 && !std::exchange(group.proven, true)) {
    for (const StageState& one : group.stages) WorkerOf(one).joins_failed = 0;
  }
  // Of answers: the head sees but their last tokens, and no job is trained.
  if (std::ranges::any_of(jobs, Generations::IsGuest)) return;
  const auto waited_ms = static_cast<double>(turn_.now_us() - sent_us) / 1e3;
  if (sent_us == 0 || done.forward_ms() + done.backward_ms() <=
                          waited_ms + static_cast<double>(options_.pass_slack_ms)) {
    ObserveTimes(group, done, work);
  }
  if (&stage != &group.last()) return;
  group.microbatches++;
  group.adapters_in_microbatches += done.adapters();
  const bool trains = done.backward_ms() > 0;
  const double share = trains ? 1 : EvaluatedShare(group.base_model, WorkerOf(group.first()));
  if (IsKnown(work)) {
    group.pace.Add(turn_.now_us(), share * work);
  } else {
    group.pace.Clear();
  }
  for (const std::string& name : jobs) {
    JobState* job = jobs_.Find(name);
    if (!job || !IsLive(job->state())) continue;
    job->record.set_microbatches(job->record.microbatches() + 1);
    job->record.set_adapters_in_microbatches(job->record.adapters_in_microbatches() +
                                             done.adapters());
    // Persisted with the job's next step.
    job->job().set_adapters_per_microbatch(
        static_cast<double>(job->record.adapters_in_microbatches()) /
        static_cast<double>(job->record.microbatches()));
  }
}

// The fit is of a model that is whole on one worker; where stages are on unlike ones, or on ones of
// unlike speed, nothing is learned. How fast a worker is shows where it has all of a model.
void Core::State::ObserveTimes(GroupState& group, const worker::v1::MicrobatchDone& done,
                               const planner::Workload& work) {
  const auto times = group.passes.Add(done, group.stages.size());
  if (!times || !IsKnown(work)) return;
  WorkerState& first = WorkerOf(group.first());
  const bool whole = group.stages.size() == 1;
  const bool alike = whole || std::ranges::all_of(group.stages, [&](const StageState& stage) {
                       const WorkerState& worker = WorkerOf(stage);
                       return worker.slowness == 1 && DeviceKeyOf(&worker) == DeviceKeyOf(&first);
                     });
  if (!alike) return;
  // The model is of passes that compute no block again: such a backward holds a forward.
  const bool recomputes = group.shape.recomputation == planner::Recomputation::kBlocks;
  const double backward_ms =
      std::max(times->backward_ms - (recomputes ? times->forward_ms : 0), 0.0);
  const TimedMicrobatch microbatch{
      .work = work, .forward_ms = times->forward_ms, .backward_ms = backward_ms};
  const planner::ModelShape& shape = *catalog_.Model(group.base_model).shape;
  const int64_t capacity = group.shape.capacity_tokens;
  if (whole) {
    cluster_.Observe(group.base_model, shape, first, capacity, microbatch);
  } else {
    cluster_.fits().Observe(group.base_model, shape, first, capacity, microbatch);
  }
}

void Core::State::OnWindowDone(GroupState& group, StageState& stage) {
  TakeWindow(stage.orders);
  if (&stage == &group.last()) group.windows_done++;
  groups_.HurryPlan(group);
}

}  // namespace lorad::server
