// What must hold in a site, whatever has happened to it.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdio>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/job_states.h"
#include "server/store/store_reads.h"
#include "storage/adapters/checkpoint.h"
#include "tests/sim/site.h"

namespace lorad::sim {

using namespace server;  // NOLINT: the site is the server's, simulated
using google::protobuf::util::TimeUtil;

// A watcher that comes back after every death: it sees each revision once, in their order.
void Site::CheckTurn() {
  if (disk_is_ill()) {
    promises_.StoreIsIll(awake_us());
    groups_.WaitsStartOver(awake_us());
  }
  promises_.CheckAnswers(awake_us());
  groups_.CheckWaits(awake_us());
  CheckSizes();
  CheckCore();
  // What was told and is not there after a death was never durable.
  REQUIRE(watched_ <= revisions().newest());
  while (watched_ < revisions().newest() && WatchOn()) {
  }
}

// False: the disk does not say.
bool Site::WatchOn() {
  auto found = ReadRevisions(watched_, 1000);
  // Who has seen no job yet has nothing to miss.
  while (absl::IsOutOfRange(found.status()) && (seen_.empty() || MayBeGone(watched_))) {
    has_missed_ = has_missed_ || !seen_.empty();
    orders_.Missed();
    followed_.clear();
    room_made_.clear();
    turns_.clear();
    found = ReadRevisions(++watched_, 1000);
  }
  INFO("seed " << options_.seed << ", watched up to " << watched_ << ": " << found.status());
  if (disk_is_ill() && !found.ok() && !absl::IsOutOfRange(found.status())) return false;
  REQUIRE(found.ok());
  if (has_missed_ && watched_ == revisions().newest()) return true;  // nothing is left of it
  REQUIRE(found->up_to > watched_);
  for (const auto& revision : found->revisions) {
    REQUIRE(revision->revision > watched_);
    watched_ = revision->revision;
    seen_[watched_] = {revision->job, revision->progress, idle_us_};
    CheckToldChange(*revision);
  }
  REQUIRE(found->up_to >= watched_);
  watched_ = found->up_to;
  return true;
}

// What counts as progress leaves the state as it was, and who is deleted had ended.
void Site::CheckToldChange(const RevisionLog::Revision& revision) {
  v1::WatchJobsResponse message;
  REQUIRE(message.ParseFromString(revision.message));
  REQUIRE(message.revision() == revision.revision);
  REQUIRE(message.job().name() == revision.job);
  const auto before = followed_.find(revision.job);
  INFO("told: " << message.ShortDebugString());
  if (message.deleted()) {
    REQUIRE(!IsLive(message.job().state()));
    followed_.erase(revision.job);
    orders_.ToldDeleted(revision.job);
    return;
  }
  if (revision.progress) {
    REQUIRE((before != followed_.end() || has_missed_));
    if (before != followed_.end()) REQUIRE(before->second.state() == message.job().state());
  }
  // Who leaves a group is saved first, who loses it falls back: both go on from a checkpoint.
  if (message.job().state() == v1::Job::QUEUED || message.job().state() == v1::Job::PAUSED) {
    REQUIRE(message.job().step() == message.job().last_checkpoint_step());
    if (before != followed_.end()) CheckDeparture(before->second, message.job());
  }
  const int64_t came_us = came_us_.try_emplace(revision.job, now_us()).first->second;
  const bool succeeds = message.job().state() == v1::Job::SUCCEEDED;
  if (succeeds && before != followed_.end() && IsLive(before->second.state())) {
    succeeded_us_.push_back(came_us);
  }
  orders_.Told(message.job());
  std::map<int64_t, int32_t>& priorities = priorities_[revision.job];
  const int32_t priority = message.job().priority();
  if (priorities.empty() || priorities.rbegin()->second != priority) {
    priorities[revision.revision] = priority;
  }
  if (message.job().state() != v1::Job::QUEUED) CheckTurns(message.job());
  followed_[revision.job] = message.job();
}

std::optional<Site::Move> Site::LastMove(const std::string& job) {
  v1::ListEventsRequest request;
  request.set_job(job);
  request.set_page_size(1000);
  const auto told = ReadEvents(store(), request);
  std::optional<Move> move;
  if (!told.ok()) return move;
  for (const v1::Event& event : told->events()) {
    const bool decided = event.reason() == "MOVED";
    const bool leaves = event.reason() == "STATE_CHANGED" && !IsPlaced(event.to_state());
    if (!decided && !leaves) continue;
    // "moves from G to H: it makes room for J", as it is decided and again as it leaves; where it
    // has not run in G yet, as it leaves alone.
    const std::string& why = event.message();
    if (!decided && !why.starts_with("moves from ")) {
      move.reset();
      continue;
    }
    if (!move || !move->pending) {
      move.emplace();
      move->decided_us = TimeUtil::TimestampToMicroseconds(event.time()) - wall_ahead_us_;
    }
    constexpr std::string_view kTo = " to ", kRoom = ": it makes room for ";
    const size_t to = why.find(kTo) + kTo.size(), end = why.find(": ", to);
    const bool for_one = why.compare(end, kRoom.size(), kRoom) == 0;
    move->to = why.substr(to, end - to);
    move->for_job = for_one ? why.substr(end + kRoom.size()) : "";
    move->pending = decided && event.revision() > revision_of_start_;
  }
  return move;
}

// Who leaves a group that goes on loses no step.
void Site::CheckDeparture(const v1::Job& before, const v1::Job& job) {
  if (!IsPlaced(before.state())) return;
  v1::ListEventsRequest request;
  request.set_job(job.name());
  request.set_page_size(1000);
  const auto told = ReadEvents(store(), request);
  if (!told.ok()) return;  // the disk does not say
  std::string why;
  for (const v1::Event& event : told->events()) {
    const bool is_it = event.reason() == "STATE_CHANGED" && event.to_state() == job.state() &&
                       event.revision() <= job.revision();
    if (is_it) why = event.message();
  }
  const bool departs = why.starts_with("evicted from ") || why.starts_with("moves from ") ||
                       why.starts_with("paused by ") || why.ends_with("a new driver");
  INFO(why << ": it had done " << before.step() << " steps, now " << job.ShortDebugString());
  if (departs) REQUIRE(job.step() >= before.step());
  CheckRoomMade(job.name(), why);
  if (why.starts_with("evicted from ")) CheckEviction(job, *told);
}

// The lowest and the highest that it had between two revisions.
std::pair<int32_t, int32_t> Site::PrioritiesOf(const std::string& job, int64_t first,
                                               int64_t last) const {
  const std::map<int64_t, int32_t>& all = priorities_.at(job);
  auto it = all.upper_bound(first);
  if (it != all.begin()) --it;
  std::pair<int32_t, int32_t> found = {it->second, it->second};
  for (; it != all.end() && it->first <= last; ++it) {
    found = {std::min(found.first, it->second), std::max(found.second, it->second)};
  }
  return found;
}

// While a group makes room for a job, nobody of another is evicted for it, but where its worker may
// be silent, or another job that comes before it may take that room.
void Site::CheckEviction(const v1::Job& victim, const v1::ListEventsResponse& events) {
  constexpr int64_t kSilentUs = 4'000'000;
  const bool may_be_silent = deaths_ + closings_ + streams_ended_ > 0 ||
                             std::ranges::any_of(workers_, [](const auto& worker) {
                               return worker->longest_stop_us() > kSilentUs;
                             });
  Evicted evicted;
  evicted.job = victim.name();
  std::string other;
  for (const v1::Event& event : events.events()) {
    if (event.reason() != "EVICTED") continue;
    // "evicted from G for J"
    const std::vector<std::string> words = absl::StrSplit(event.message(), ' ');
    evicted.group = words.at(2);
    evicted.decided = event.revision();
    other = words.at(4);
  }
  evicted.left = victim.revision();
  const auto waits = followed_.find(other);
  if (waits == followed_.end()) return;  // it is deleted
  for (const Evicted& before : evicted_[other]) {
    const bool at_once = before.decided < evicted.left && evicted.decided < before.left;
    if (may_be_silent || !at_once || before.group == evicted.group) continue;
    const auto [first, last] = std::minmax(before.decided, evicted.left);
    const int32_t lowest = PrioritiesOf(other, first, last).first;
    const bool may_be_passed = std::ranges::any_of(followed_, [&](const auto& entry) {
      return entry.first != other && IsLive(entry.second.state()) &&
             PrioritiesOf(entry.first, first, last).second >= lowest;
    });
    if (may_be_passed) continue;
    INFO(victim.name() << " is evicted from " << evicted.group << " at revision " << evicted.decided
                       << ", and " << before.job << " from " << before.group << " at "
                       << before.decided << " to " << before.left << ", both for " << other);
    REQUIRE(before.group == evicted.group);
  }
  evicted_[other].push_back(evicted);
}

// Others leave their groups for a job so that it begins. Some come before it once or twice, or a
// worker is lost again that it was to have; but they do not leave again and again.
void Site::CheckRoomMade(const std::string& leaver, const std::string& why) {
  constexpr int64_t kTimes = 3;
  const bool evicted = why.starts_with("evicted from ");
  const size_t end = evicted ? why.find(" for ") : why.find(": it makes room for ");
  if (end == std::string::npos) return;
  const std::string waits = why.substr(why.rfind(' ') + 1);
  const auto it = followed_.find(waits);
  if (it == followed_.end() || it->second.state() != v1::Job::QUEUED) return;
  const int64_t times = ++room_made_[waits][leaver];
  INFO("job " << leaver << " makes room for job " << waits << " " << times
              << " times, and it has not begun: " << it->second.ShortDebugString());
  REQUIRE(times <= kTimes + deaths_ + closings_ + streams_ended_);
}

// Others have left their groups for a job that waited. Of equal ones that wait on, each has its turn
// before the job has its next; where teams share, or nobody gathers points, it may be otherwise.
void Site::CheckTurns(const v1::Job& job) {
  constexpr int64_t kTimes = 1;
  turns_.erase(job.name());
  if (room_made_.erase(job.name()) == 0 || !IsPlaced(job.state())) return;
  const planner::SchedulePolicy& policy = options_.core.policy;
  if (policy.fair_share || policy.points_per_hour <= 0) return;
  if (options_.in_turn) return;  // they wait for unlike workers: turns.h
  for (const auto& [name, other] : followed_) {
    if (other.state() != v1::Job::QUEUED || other.priority() != job.priority()) continue;
    if (other.queue().why().find("tried again at") != std::string::npos)
      continue;  // it may not yet
    const int64_t times = ++turns_[name][job.name()];
    INFO("job " << job.name() << " takes a place " << times
                << " times while this one waits: " << other.ShortDebugString());
    REQUIRE(times <= kTimes + deaths_ + closings_ + streams_ended_);
  }
}

bool Site::MayBeGone(int64_t revision) const {
  if (revisions().newest() - revision > options_.core.watch_revisions_max) return true;
  // What nobody has seen came about since the loop had done all that had come: it may be that long
  // ago, where the coordinator was paused before it could tell.
  const auto follows = seen_.upper_bound(revision);
  const int64_t since_us = follows != seen_.end() ? follows->second.at_us : idle_us_;
  return now_us() - since_us >= options_.core.watch_keep_ms * 750;
}

// What the core keeps agrees with itself; where there are many jobs it is asked less often.
void Site::CheckCore() {
  if (steps_++ % (1 + loop().SizesOfCore().whole_jobs / 16) != 0) return;
  const absl::Status agrees = loop().CheckInvariants();
  INFO("seed " << options_.seed << ": " << agrees);
  REQUIRE(agrees.ok());
}

// What grows with time has a bound (server/core/core.h), that of the options or of what is alive.
void Site::CheckSizes() const {
  const CoreSizes sizes = loop().SizesOfCore();
  const CoreOptions& options = options_.core;
  INFO("seed " << options_.seed << ": " << sizes.live_jobs << " live jobs");
  const auto bounded = [](const char* what, int64_t size, int64_t bound) {
    if (size > bound) FAIL(what << ": " << size << ", at most " << bound);
  };
  bounded("request ids", sizes.request_ids, options.request_ids_max);
  bounded("jobs taken up", sizes.whole_jobs, sizes.live_jobs + sizes.ended_jobs_at_work);
  bounded("metric rows", sizes.metric_rows, sizes.steps_after_checkpoints);
}

// What the watcher has not seen, it was not told.
void Site::CheckWatched() {
  const auto kept = store().ReadSeries(kRevisionSeries, "", 0, 1'000'000);
  REQUIRE(kept.ok());
  for (const storage::Entry& entry : *kept) {
    v1::WatchJobsResponse message;
    REQUIRE(message.ParseFromString(entry.value));
    INFO("revision " << entry.number << " of job " << message.job().name());
    const auto seen = seen_.find(entry.number);
    REQUIRE(seen != seen_.end());
    REQUIRE(seen->second.job == message.job().name());
    REQUIRE(!seen->second.progress);
  }
}

void Site::CheckJob(const v1::Job& job) {
  const std::string& name = job.name();
  INFO("seed " << options_.seed << ", job " << job.ShortDebugString());
  v1::Job::State state = v1::Job::VALIDATING;
  v1::ListEventsRequest events;
  events.set_job(name);
  events.set_page_size(1000);
  const auto told = ReadEvents(store(), events);
  REQUIRE(told.ok());
  int moves = 0;
  for (const v1::Event& event : told->events()) {
    moves += event.reason() == "MOVED" ? 1 : 0;
    REQUIRE(event.reason() != "NUMERICS_MISMATCH");
    if (event.reason() != "STATE_CHANGED") continue;
    REQUIRE(event.from_state() == state);
    REQUIRE(IsLegal(event.from_state(), event.to_state()));
    state = event.to_state();
  }
  REQUIRE(state == job.state());
  const auto followed = followed_.find(name);
  REQUIRE((followed != followed_.end() || has_missed_));
  if (followed != followed_.end()) REQUIRE(followed->second.state() == state);
  // A coordinator that is started again does not know when a job was moved.
  const int64_t times = now_us() / (options_.core.policy.minimum_run_s * 1'000'000) + deaths_;
  REQUIRE(moves <= 1 + times);
  v1::GetMetricsRequest metrics;
  metrics.set_job(name);
  metrics.set_page_size(1000);
  int64_t step = 0, tokens = 0;
  const auto rows = ReadMetrics(store(), metrics);
  REQUIRE(rows.ok());
  for (const v1::StepMetrics& row : rows->steps()) {
    REQUIRE(row.step() == ++step);
    REQUIRE(row.loss() == TrainLoss(name, step));
    REQUIRE(row.grad_norm() == TrainLoss(name, step) / 2);
    REQUIRE(row.tokens() > row.trained_tokens());
    tokens += row.tokens();
  }
  v1::ListCheckpointsRequest checkpoints;
  checkpoints.set_job(name);
  checkpoints.set_page_size(1000);
  const auto all = ReadCheckpoints(store(), checkpoints);
  REQUIRE(all.ok());
  for (const v1::Checkpoint& kept : all->checkpoints()) CheckCheckpoint(job, kept.step());
  CheckRemoved(job, told->events(), all->checkpoints());
  if (job.state() != v1::Job::SUCCEEDED) return;
  const bool finished = job.finish_step() > 0;
  const int64_t end = finished ? job.finish_step() : job.total_steps();
  REQUIRE(end <= job.total_steps());
  // One that waited as it was to finish ends at its newest checkpoint. It may have been further.
  REQUIRE(step == end);
  REQUIRE(job.step() == end);
  REQUIRE(job.last_checkpoint_step() == end);
  // Where its user has deleted that, an older one may be written yet.
  const std::string deleted =
      absl::StrCat("the checkpoint of step ", end, " was deleted by its user");
  const bool is_deleted = std::ranges::count(told->events(), deleted, &v1::Event::message) > 0;
  REQUIRE((is_deleted || all->checkpoints().empty() || all->checkpoints().rbegin()->step() == end));
  int64_t tokens_at_end = 0;
  for (int64_t i = 0; i < end; ++i) tokens_at_end += rows->steps(static_cast<int>(i)).tokens();
  REQUIRE(job.tokens() == tokens_at_end);
  CheckEvaluations(job);
}

// The newest ones and the best are there; what was removed was neither.
void Site::CheckRemoved(const v1::Job& job,
                        const google::protobuf::RepeatedPtrField<v1::Event>& events,
                        const google::protobuf::RepeatedPtrField<v1::Checkpoint>& kept) {
  const int last = job.training().checkpoint_keep_last(),
            best = job.training().checkpoint_keep_best();
  bool others_went = false;  // by their user, or given up
  std::vector<int64_t> removed;
  for (const v1::Event& event : events) {
    int64_t step = 0;
    if (event.reason() == "CHECKPOINT_REMOVED") {
      REQUIRE(sscanf(event.message().c_str(), "the checkpoint of step %ld was", &step) == 1);
      removed.push_back(step);
    }
    others_went |= event.reason() == "CHECKPOINT_DELETED" ||
                   event.message().find(" is given up (") != std::string::npos;
  }
  REQUIRE((removed.empty() || last > 0 || best > 0));
  if (others_went || kept.empty()) return;
  for (const int64_t step : removed) {
    INFO("removed was step " << step);
    const auto newer = std::ranges::count_if(
        kept, [&](const v1::Checkpoint& checkpoint) { return checkpoint.step() > step; });
    REQUIRE(newer >= 1);
    if (best == 0) REQUIRE(newer >= std::max(last, 1));
    const auto lost = LossAt(job, step);
    if (best == 0 || !lost) continue;
    // It had a loss, and so there are as many that are as good.
    REQUIRE(std::ranges::count_if(kept, [&](const v1::Checkpoint& checkpoint) {
              return checkpoint.has_validation_loss() && checkpoint.validation_loss() <= *lost;
            }) >= best);
  }
  if (IsLive(job.state()) || (last == 0 && best == 0)) return;
  REQUIRE(kept.size() <= std::max(last, 1) + best);
}

// The validation loss at the step; nothing where it was not evaluated.
std::optional<double> Site::LossAt(const v1::Job& job, int64_t step) {
  v1::GetMetricsRequest request;
  request.set_job(job.name());
  request.set_series(v1::GetMetricsRequest::EVALUATION);
  request.set_after_step(step - 1);
  request.set_page_size(1);
  const auto rows = ReadMetrics(store(), request);
  REQUIRE(rows.ok());
  if (rows->evaluations().empty() || rows->evaluations(0).step() != step) return std::nullopt;
  return rows->evaluations(0).validation_loss();
}

// It is whole, and holds what it would if nothing had gone wrong.
void Site::CheckCheckpoint(const v1::Job& job, int64_t step) {
  const std::string directory = absl::StrCat("/data/checkpoints/", job.name(), "/", step);
  const auto found = storage::OpenCheckpoint(files_, directory, true);
  INFO("checkpoint " << step << ": " << found.status());
  REQUIRE(found.ok());
  REQUIRE(found->state.job == job.name());
  REQUIRE(found->state.step == step);
  const auto undisturbed = TensorFilesOf(ModelNamed(job.base_model()), job.name(), step,
                                         static_cast<int>(job.adapter().rank()));
  for (const auto& [name, bytes] : undisturbed) {
    INFO(name << " is not that of an undisturbed run");
    const auto read = files_.ReadAll(storage::JoinPath(directory, name), 1 << 24);
    REQUIRE(read.ok());
    const bool same = *read == bytes;
    REQUIRE(same);
  }
}

// One for each step at which one is due, of all rows of the validation set.
void Site::CheckEvaluations(const v1::Job& job) {
  std::vector<int64_t> due;
  const int64_t every = job.training().eval_every_steps();
  // Of one that was to finish nothing is due at its end, and what was done beyond it is gone.
  const bool finished = job.finish_step() > 0;
  for (int64_t step = 0; step <= job.total_steps(); ++step) {
    const bool now = step == 0 || step == job.total_steps() || (every > 0 && step % every == 0);
    if (now && !job.validation_dataset().empty()) due.push_back(step);
  }
  v1::GetMetricsRequest request;
  request.set_job(job.name());
  request.set_series(v1::GetMetricsRequest::EVALUATION);
  request.set_after_step(-1);
  request.set_page_size(1000);
  const auto rows = ReadMetrics(store(), request);
  REQUIRE(rows.ok());
  const auto needed = static_cast<int>(
      finished ? std::ranges::count_if(due, [&](int64_t step) { return step < job.finish_step(); })
               : std::ssize(due));
  const auto most = static_cast<int>(
      finished ? std::ranges::count_if(due, [&](int64_t step) { return step <= job.finish_step(); })
               : std::ssize(due));
  REQUIRE(rows->evaluations_size() <= most);
  REQUIRE((finished ? rows->evaluations_size() >= needed : rows->evaluations_size() == needed));
  for (int i = 0; i < rows->evaluations_size(); ++i) {
    const v1::EvaluationMetrics& row = rows->evaluations(i);
    INFO("evaluation " << row.ShortDebugString());
    REQUIRE(row.step() == due[i]);
    double sum = 0;
    int64_t trained = 0;
    const std::vector<int64_t>& lengths = rows_.at(job.validation_dataset());
    for (int64_t sequence = 0; sequence < std::ssize(lengths); ++sequence) {
      const int64_t tokens = lengths[sequence] - 1;  // the first is not trained on
      sum += static_cast<double>(tokens) * ValidationLoss(job.name(), row.step(), sequence);
      trained += tokens;
    }
    REQUIRE(row.trained_tokens() == trained);
    REQUIRE(row.validation_loss() == sum / static_cast<double>(trained));
  }
}

void Site::CheckAll() {
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  const auto all = std::get<v1::ListJobsResponse>(Call([&]() -> Request { return request; }));
  for (const v1::Job& job : all.jobs()) CheckJob(job);
  for (const auto& [name, job] : followed_) {
    INFO("nobody told that it was deleted: " << name);
    REQUIRE((has_missed_ || std::ranges::count(all.jobs(), name, &v1::Job::name) == 1));
  }
  promises_.CheckKept(store(), files_);
  CheckWatched();
}

}  // namespace lorad::sim
