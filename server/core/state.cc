#include "server/core/state.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/job_progress.h"
#include "server/core/overloaded.h"
#include "server/core/stored.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// Deleting every revision by itself would double the work of a turn.
constexpr int64_t kTrimEvery = 256;

}  // namespace

std::string Utf8(const std::string& text) {
  std::string clean;
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<unsigned char>(text[at]); };
    const size_t size = byte(i) < 0x80 ? 1 : byte(i) >= 0xf0 ? 4 : byte(i) >= 0xe0 ? 3 : 2;
    char32_t code = size == 1 ? byte(i) : byte(i) & (0xff >> (size + 1));
    bool good = size == 1 || (byte(i) >= 0xc2 && byte(i) <= 0xf4 && i + size <= text.size());
    for (size_t k = 1; good && k < size; ++k) {
      good = (byte(i + k) & 0xc0) == 0x80;
      code = code << 6 | (byte(i + k) & 0x3f);
    }
    constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
    good = good && code >= kLeast[size] && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff);
    clean += good ? text.substr(i, size) : "?";
    i += good ? size : 1;
  }
  return clean;
}

// ---- start ----

Core::State::State(const CoreOptions& options)
    : options_(options),
      answers_(options_, turn_),
      catalog_(turn_, answers_),
      rows_(options_, turn_, catalog_),
      groups_(turn_) {}

absl::Status Core::State::Load(StoredState stored) {
  if (absl::Status status = catalog_.Load(stored); !status.ok()) return status;
  if (absl::Status status = rows_.Load(stored.rows); !status.ok()) return status;
  if (absl::Status status = answers_.Load(std::move(stored.requests)); !status.ok()) return status;
  if (absl::Status status = LoadJobs(stored); !status.ok()) return status;
  LoadMetrics(stored);
  revision_ = stored.last_revision;
  trimmed_revision_ = stored.oldest_revision - 1;
  groups_.Load(stored.last_epoch);
  return absl::OkStatus();
}

absl::Status Core::State::LoadJobs(StoredState& stored) {
  ended_.reserve(stored.jobs.size());
  records::JobRecord record;  // one for all: its strings keep their room
  for (auto& entry : stored.jobs) {
    if (auto status = ParseStored(kJobKind, entry, &record); !status.ok()) return status;
    next_order_ = std::max(next_order_, record.order() + 1);
    const v1::Job::State state = record.job().state();
    jobs_by_state_[state]++;
    const auto [place_of, is_new] = by_order_.try_emplace(record.order());
    if (!is_new) {
      return Error(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                   absl::StrCat("the stored job '", entry.first, "' stands where another does"));
    }
    JobEntry& place = place_of->second;
    by_revision_[record.job().revision()] = record.order();
    if (!IsLive(state)) {
      ended_[entry.first] = record.order();
      place.ended_state = state;
      place.record = std::move(entry.second);
      continue;
    }
    auto job = std::make_unique<JobState>();
    job->record = record;
    if (const auto& evaluated = record.evaluated_steps(); !evaluated.empty()) {
      job->record.set_evaluated_end(*evaluated.rbegin() + 1);
      job->record.clear_evaluated_steps();
    }
    place.job = job.get();
    live_.insert(entry.first);
    jobs_[entry.first] = std::move(job);
  }
  return absl::OkStatus();
}

void Core::State::LoadMetrics(const StoredState& stored) {
  std::map<JobState*, int64_t>
      redone;  // tokens after the newest checkpoint, that are in the record
  for (const auto& [name, row] : stored.metrics) {
    JobState& job = *jobs_.at(name);
    if (row.step() <= job.job().step()) redone[&job] += row.tokens();
    job.metrics[row.step()] = row;
    if (job.metrics.size() > kMetricRowsKept) job.metrics.erase(job.metrics.begin());
    // The record may be older than the row.
    if (row.step() <= job.record.furthest_step()) continue;
    job.record.set_furthest_step(row.step());
    job.record.set_losses_without_progress(0);
    job.job().set_loss(row.loss());
    job.job().set_grad_norm(row.grad_norm());
    job.job().set_learning_rate(row.learning_rate());
  }
  for (const std::string& name : live_) {
    JobState& job = *jobs_.at(name);
    if (job.record.has_checkpoint_tokens()) continue;
    job.record.set_checkpoint_tokens(job.job().tokens() - redone[&job]);
  }
}

std::vector<Effect> Core::State::Recover(Moment now, int64_t starts_before) {
  turn_.Start(now, starts_before);
  answers_.Prune();
  const std::set<std::string> live = live_;
  for (const std::string& name : live) {
    JobState& job = *FindJob(name);
    if (job.state() == v1::Job::CANCELLING) {
      Transition(job, v1::Job::CANCELLED, "the coordinator was started again");
    } else if (IsPlaced(job.state())) {
      FallBack(job);
      Transition(job, v1::Job::QUEUED,
                 absl::StrCat("the coordinator was started again; the job goes on from step ",
                              job.job().step()));
    } else if (job.state() == v1::Job::QUEUED) {
      EnterQueue(job);
    } else if (rows_.Ensure(job.job())) {
      SettleJob(job);
    }
  }
  turn_.WantSchedule();
  return EndTurn();
}

std::vector<std::string> Core::State::PathsInUse() const {
  std::vector<std::string> paths = catalog_.Paths();
  records::JobRecord space;
  for (const auto& [order, entry] : by_order_) {
    const records::JobRecord& record = RecordOf(entry, &space);
    for (const int64_t step : record.checkpoint_steps()) {
      paths.push_back(absl::StrCat("checkpoints/", record.job().name(), "/", step));
    }
  }
  return paths;
}

std::vector<std::string> Core::State::SettledFolders() const {
  std::vector<std::string> folders;
  folders.reserve(ended_.size());
  for (const auto& [name, order] : ended_) folders.push_back(absl::StrCat("checkpoints/", name));
  return folders;
}

// ---- turns ----

std::vector<Effect> Core::State::Apply(const Event& event) {
  turn_.Begin(event.time);
  std::visit(Overloaded{
                 [&](const Requested& requested) {
                   std::visit([&](const auto& content) { On(requested.request, content); },
                              requested.content);
                 },
                 [&](const WorkerConnected& content) { OnConnected(content); },
                 [&](const WorkerSaid& content) { OnSaid(content); },
                 [&](const WorkerGone& content) { OnGone(content); },
                 [&](const RowsChecked& content) { OnRows(content); },
                 [&](const Planned& content) { OnPlanned(content); },
                 [&](const UploadMoved& content) { catalog_.OnMoved(content); },
                 [&](const CheckpointWritten& content) { OnWritten(content); },
                 [&](const ContentRead& content) { OnContentRead(content); },
                 [&](const RoomChanged& content) { OnRoom(content); },
                 [&](const TimerFired& content) { OnTimer(content); },
             },
             event.content);
  return EndTurn();
}

std::vector<Effect> Core::State::EndTurn() {
  // A group that moves on can make room, and a decision can give a group something to do; every
  // round takes at least one job or group a step further.
  do {
    if (turn_.TakeScheduleWanted()) Schedule();
    for (const std::string& name : groups_.names()) {
      if (GroupState* group = groups_.Find(name)) Advance(*group);
    }
  } while (turn_.schedule_wanted());
  FinishStop();
  AnswerEstimates();
  const std::set<std::string> touched = touched_;
  for (const std::string& name : touched) {
    if (JobState* job = FindJob(name)) Publish(*job);
  }
  touched_.clear();
  PutEndedAway();
  // Each revision that is kept for watchers has one before it that holds its job whole.
  const int64_t kept = options_.watch_revisions_max + kWholeEvery;
  if (revision_ - kept >= trimmed_revision_ + kTrimEvery) {
    trimmed_revision_ = revision_ - kept;
    turn_.Put(storage::TrimSeries(kRevisionSeries, "", trimmed_revision_));
  }
  return turn_.End();
}

void Core::State::Publish(JobState& job) {
  touched_.erase(job.name());
  by_revision_.erase(job.job().revision());
  job.job().set_revision(++revision_);
  by_revision_[revision_] = job.record.order();
  job.job().set_etag(absl::StrCat(revision_));
  v1::WatchJobsResponse message;
  *message.mutable_job() = View(job);
  message.set_revision(revision_);
  std::string bytes = message.SerializeAsString();
  if (job.record_changed || revision_ - job.stored_revision >= kWholeEvery) {
    job.record_changed = false;
    job.stored_revision = revision_;
    turn_.Put(storage::PutRecord(kJobKind, job.name(), job.record.SerializeAsString()));
    turn_.Put(storage::PutEntry(kRevisionSeries, "", revision_, bytes));
  } else {
    records::RevisionRecord kept;
    *kept.mutable_job() = ProgressOf(message.job());
    kept.set_revision(revision_);
    kept.set_progress_only(true);
    turn_.Put(storage::PutEntry(kRevisionSeries, "", revision_, kept.SerializeAsString()));
  }
  turn_.Do(Announce{revision_, job.name(), std::move(bytes)});
}

v1::Event Core::State::AddEvent(JobState& job, const std::string& reason,
                                const std::string& message, v1::Job::State from,
                                v1::Job::State to) {
  v1::Event event;
  event.set_revision(++revision_);
  turn_.Stamp(event.mutable_time());
  event.set_job(job.name());
  event.set_reason(reason);
  event.set_message(Utf8(message));
  event.set_from_state(from);
  event.set_to_state(to);
  turn_.Put(
      storage::PutEntry(kEventSeries, job.name(), event.revision(), event.SerializeAsString()));
  Touch(job);
  return event;
}

void Core::State::Transition(JobState& job, v1::Job::State to, const std::string& message) {
  const v1::Job::State from = job.state();
  assert(IsLegal(from, to));
  if (from == v1::Job::QUEUED) LeaveQueue(job);
  if (from == v1::Job::VALIDATING || std::exchange(job.reads_rows, false)) rows_.Leave(job.job());
  jobs_by_state_[from]--;
  jobs_by_state_[to]++;
  job.job().set_state(to);
  if (to == v1::Job::QUEUED) EnterQueue(job);
  if (to == v1::Job::RUNNING && !job.job().has_start_time()) {
    turn_.Stamp(job.job().mutable_start_time());
  }
  if (!IsLive(to)) {
    turn_.Stamp(job.job().mutable_end_time());
    live_.erase(job.name());
    put_away_.insert(job.name());
    job.job().clear_seconds_left();
    job.metrics.clear();
    job.evaluation = {};
    job.pace.clear();
    job.passing.reset();
  }
  if (to == v1::Job::QUEUED || !IsLive(to)) job.job().clear_group();
  turn_.WantSchedule();
  const v1::Event event = AddEvent(job, "STATE_CHANGED", message, from, to);
  if (job.passing) job.passing->changes.push_back(event.revision());
}

void Core::State::FailJob(JobState& job, v1::JobError::Category category, const std::string& reason,
                          const std::string& message, const std::string& field, int64_t line) {
  v1::JobError* error = job.job().mutable_error();
  error->set_category(category);
  error->set_reason(reason);
  error->set_message(Utf8(message));
  error->set_field(field);
  error->set_line(line);
  Transition(job, v1::Job::FAILED, absl::StrCat(reason, ": ", message));
}

Core::State::QueueKey Core::State::KeyOf(const JobState& job) {
  return {!Resumes(job), -job.job().priority(), job.record.order()};
}

std::string Core::State::QueueShape(const JobState& job) {
  const v1::Job& content = job.job();
  return absl::StrCat(Resumes(job), "/", job.record.company_max(), "/", content.priority(), "/",
                      job.record.longest_tokens(), "/", content.adapter().rank(), "/",
                      absl::StrJoin(content.adapter().target_modules(), ","), "/",
                      content.base_model());
}

void Core::State::EnterShapes(JobState& job) {
  shapes_[QueueShape(job)][KeyOf(job)] = &job;
  turn_.WantSchedule();
}

void Core::State::LeaveShapes(JobState& job) {
  const auto shape = shapes_.find(QueueShape(job));
  if (shape == shapes_.end()) return;
  shape->second.erase(KeyOf(job));
  if (shape->second.empty()) shapes_.erase(shape);
}

void Core::State::EnterQueue(JobState& job) {
  queue_[KeyOf(job)] = &job;
  EnterShapes(job);
  places_known_ = false;
  turn_.WantSchedule();
}

void Core::State::LeaveQueue(JobState& job) {
  queue_.erase(KeyOf(job));
  LeaveShapes(job);
  job.resumes = false;
  places_known_ = false;
  job.why.clear();
}

void Core::State::FallBack(JobState& job) {
  job.job().set_tokens(job.record.checkpoint_tokens());
  job.job().set_step(job.job().last_checkpoint_step());
  job.job().clear_tokens_per_second();
  job.job().clear_seconds_left();
  job.evaluation = {};
  job.pace.clear();
  Touch(job);
}

JobState* Core::State::FindJob(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? TakeUp(name) : found->second.get();
}

}  // namespace lorad::server
