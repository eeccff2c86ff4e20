#include "planner/foresight/place.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

// A measurement that says more than that is of something else: of jobs that have just come, say.
constexpr double kSlownessMax = 16;
// So much do counted rounds lie beside whole ones.
constexpr double kRoundsError = 1e-6;

// One that comes from the queue.
std::unique_ptr<Trainee> TraineeOf(const QueuedJob& job) {
  auto trainee = std::make_unique<Trainee>();
  trainee->running.priority = job.priority;
  trainee->running.arrival = job.arrival;
  trainee->running.longest_sequence = job.longest_sequence;
  trainee->running.step_tokens = job.step_tokens;
  trainee->running.step_squared_lengths = job.step_squared_lengths;
  trainee->running.label_group = job.label_group;
  trainee->running.company_max = job.company_max;
  trainee->running.alone = job.alone;
  return trainee;
}

}  // namespace

double Place::ModelSeconds() const {
  const double ms = RoundMs(group.pace.times, group.crew.round(), group.shape.capacity_tokens);
  return std::max(ms, longest_step_ms) / 1000;
}

double Place::RoundSeconds() const { return slowness * ModelSeconds(); }

// On several workers a round lasts no less than the step of any job does where none overlaps it.
// Where the group's pace was measured that has it already.
void Place::SetLongestStep() {
  longest_step_ms = 0;
  if (!IsSeveral() || paced) return;
  const int64_t capacity = group.shape.capacity_tokens;
  for (const JobWork& job : group.crew.jobs()) {
    const double alone_ms =
        RoundMs(group.pace.times, job.step, capacity) *
        FillAndDrainFactor(static_cast<int64_t>(job.step.tokens), capacity, group.stages.size());
    longest_step_ms = std::max(longest_step_ms, alone_ms);
  }
}

void Place::CountTrainees() {
  first_last_round_ = kNever;
  last_last_round_ = 0;
  group.jobs = trainees.size();
  group.lowest_priority = std::numeric_limits<int32_t>::max();
  group.alone = false;
  group.suspects = 0;
  group.company_max = std::numeric_limits<int32_t>::max();
  for (const auto& trainee : trainees) {
    first_last_round_ = std::min(first_last_round_, trainee->last_round);
    last_last_round_ = std::max(last_last_round_, trainee->last_round);
    const RunningJob& running = trainee->running;
    group.lowest_priority = std::min(group.lowest_priority, running.priority);
    group.Suspect(running.company_max, running.alone);
  }
  SetLongestStep();
}

size_t Place::NextToEnd() const {
  const auto first = std::ranges::min_element(
      trainees, {}, [](const auto& trainee) { return trainee->last_round; });
  return static_cast<size_t>(first - trainees.begin());
}

void Place::AdvanceTo(double time_s) {
  if (time_s <= now_s) return;
  if (!trainees.empty()) rounds += (time_s - now_s) / RoundSeconds();
  now_s = time_s;
}

void Place::Take(const GroupState& of_view) {
  group = of_view;
  now_s = group.delay_s;
  const std::vector<MemberState> members = std::exchange(group.members, {});
  group.crew = {};
  CountTrainees();
  for (const MemberState& member : members) {
    group.slot_bytes -= member.slot_bytes;
    if (!member.works) continue;
    auto trainee = std::make_unique<Trainee>();
    if (member.running != nullptr) trainee->running = *member.running;
    trainee->running.coming = false;
    const int64_t running_s = trainee->running.running_s;
    trainee->began_s = running_s > 0 ? -static_cast<double>(running_s) : now_s;
    if (trainee->running.moved_s != kNeverMoved) {
      trainee->moved_at_s = -static_cast<double>(trainee->running.moved_s);
    }
    Add(member, std::move(trainee));
    // Of one of which nothing is known nothing is decided.
    if (member.running == nullptr) group.members.back().running = nullptr;
  }
  const double measured = trainees.empty() ? 0 : MeasuredSlowness(group);
  paced = measured > 0;
  if (!paced) return;
  longest_step_ms = 0;
  slowness = std::clamp(measured, 1 / kSlownessMax, kSlownessMax);
}

void Place::Form(Round& round, const std::string& base_model, const ModelShape& model,
                 size_t job_class, double moment_s) {
  const bool loaded =
      group.base_model == base_model ||
      (idle != nullptr && group.base_model.empty() && idle->worker->Holds(base_model));
  if (group.base_model != base_model) {
    slowness = 1;
    paced = false;
  }
  GroupState formed;
  formed.name = "foreseen";
  formed.base_model = base_model;
  formed.device_name = idle != nullptr ? idle->worker->device_name : group.device_name;
  formed.model = &model;
  formed.base = round.sizes.BaseOf(base_model);
  formed.worker_kind = group.worker_kind;
  formed.budget_bytes = round.sizes.kind(group.worker_kind).budget_bytes;
  formed.open = true;
  formed.stages = group.stages;
  formed.stage_kinds = group.stage_kinds;
  formed.shape = round.sizes.AloneOn(job_class, group.worker_kind).shape;
  const double of_worker = idle != nullptr ? idle->worker->slowness : group.pace.slowness;
  formed.pace =
      group.stages.empty() ? round.paces.Of(base_model, formed.device_name, of_worker) : group.pace;
  formed.bytes = round.sizes.GroupBytes(formed.base, model, formed.shape, formed.worker_kind);
  group = std::move(formed);
  now_s = moment_s + (loaded ? std::exchange(load_s, 0) : group.pace.load_s);
}

void Place::GrowFor(Round& round, size_t job_class, bool resumes) {
  if (Covers(group.shape, round.sizes.of(job_class))) return;
  SetShape(round, ShapeWith(round.sizes, group, job_class, resumes));
}

void Place::SetShape(Round& round, const GroupShape& shape) {
  group.shape = shape;
  group.bytes = round.sizes.GroupBytes(group.base, *group.model, shape, group.worker_kind);
}

bool Place::HasRoom(Round& round, const Waiter& job) const {
  return group.base_model == job.job->base_model && !group.full() && Mix(group, *job.job) &&
         Covers(group.shape, round.sizes.of(job.job_class)) &&
         FitsIn(round.sizes, group, job.job_class) &&
         round.Helps(group, group.shape, *job.job, job.work);
}

std::optional<GroupShape> Place::ShapeBeside(Round& round, const Waiter& job) const {
  if (HasRoom(round, job)) return group.shape;
  const int64_t shortest = CapacityFor(kMicrobatchTokens, group.shape.longest_sequence);
  const bool is_smallest = group.shape.capacity_tokens <= shortest;
  if (group.base_model != job.job->base_model || !Mix(group, *job.job)) return std::nullopt;
  if (is_smallest && Covers(group.shape, round.sizes.of(job.job_class))) return std::nullopt;
  const auto shape =
      ShapeFormedAgain(round.sizes, group, ShapeFor{job.job_class, job.job->resumes});
  return shape && round.Helps(group, *shape, *job.job, job.work) ? shape : std::nullopt;
}

bool Place::MakeRoom(Round& round, const Waiter& job, const Waiter* ahead) {
  const auto shape = ShapeBeside(round, job);
  if (!shape) return false;
  if (ahead != nullptr && !MayOvertake(group, job, *shape, *ahead, round.view.move_s)) return false;
  SetShape(round, *shape);
  return true;
}

double Place::TurnFor(const SchedulePolicy& policy, const QueuedJob& job, const Moments& moments,
                      absl::FunctionRef<bool(size_t)> may_move) const {
  double turn_s = kNever;
  for (size_t m = 0; m < trainees.size(); ++m) {
    const RunningJob& running = trainees[m]->running;
    if (group.members[m].running == nullptr || running.leaving || running.alone) continue;
    const double had_its_time_s = trainees[m]->began_s + static_cast<double>(policy.MinimumRun());
    const bool is_equal = running.priority == job.priority;
    double may_s = is_equal ? std::max({moments.settled_s, moments.aged_s, had_its_time_s})
                            : moments.settled_s;
    if (running.priority > job.priority) may_s = kNever;
    const double moves_s = trainees[m]->moved_at_s + policy.minimum_run_s;
    if (moves_s < may_s && may_move(group.members[m].job_class)) {
      may_s = std::min(may_s, std::max(moments.settled_s, moves_s));
    }
    if (may_s > moments.failed_s) turn_s = std::min(turn_s, may_s);
  }
  return turn_s;
}

void Place::Join(Round& round, const Waiter& job, size_t number) {
  std::unique_ptr<Trainee> trainee = TraineeOf(*job.job);
  trainee->number = number;
  trainee->began_s = now_s;
  MemberState member;
  member.job = job.job->job;
  member.job_class = job.job_class;
  member.slot_bytes = round.sizes.SlotBytes(job.job_class, group.worker_kind);
  member.work = job.work;
  Add(std::move(member), std::move(trainee));
}

void Place::Add(MemberState member, std::unique_ptr<Trainee> trainee) {
  trainee->last_round = rounds + static_cast<double>(member.work.remaining_steps);
  trainees.push_back(std::move(trainee));
  member.running = &trainees.back()->running;
  group.slot_bytes += member.slot_bytes;
  group.crew.Add(member.work);
  group.members.push_back(std::move(member));
  CountTrainees();
}

Place::Left Place::Remove(size_t member) {
  std::swap(group.members[member], group.members.back());
  std::swap(trainees[member], trainees.back());
  Left left{std::move(group.members.back()), std::move(trainees.back())};
  const double rounds_left = std::max(left.trainee->last_round - rounds, 0.0);
  group.members.pop_back();
  trainees.pop_back();
  group.crew.Remove(left.member.work);
  group.slot_bytes -= left.member.slot_bytes;
  left.member.work.remaining_steps = static_cast<int64_t>(std::ceil(rounds_left - kRoundsError));
  CountTrainees();
  return left;
}

void Place::SetMoment(double time_s, bool of_jobs) {
  group.open = open;
  group.forming = now_s > time_s;
  if (!of_jobs) return;
  for (const auto& trainee : trainees) {
    trainee->running.running_s = static_cast<int64_t>(time_s - trainee->began_s);
    if (trainee->moved_at_s > -kNever) {
      trainee->running.moved_s = static_cast<int64_t>(time_s - trainee->moved_at_s);
    }
  }
}

}  // namespace lorad::planner
