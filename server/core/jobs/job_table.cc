#include "server/core/jobs/job_table.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/row_sums.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/kept.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/rules/job_states.h"
#include "server/core/rules/kept_checkpoints.h"
#include "server/core/rules/losses.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr int kIdCharacters = 8;

// "job-" and 8 of 32 letters and digits that are not easily mistaken for each other.
std::string IdOf(uint64_t random) {
  constexpr char kAlphabet[] = "abcdefghijkmnpqrstuvwxyz23456789";
  std::string id = "job-";
  for (int i = 0; i < kIdCharacters; ++i) {
    id += kAlphabet[random % 32];
    random /= 32;
  }
  return id;
}

// With '?' for what is not UTF-8: a proto's string that is not cannot be read again, and what a row
// or a file name holds may be anything.
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

}  // namespace

// ---- start ----

absl::Status JobTable::Load(StoredState& stored) {
  if (absl::Status status = LoadJobs(stored); !status.ok()) return status;
  LoadMetrics(stored);
  revision_ = stored.last_revision;
  trimmed_revision_ = stored.trimmed_revision;
  return absl::OkStatus();
}

absl::Status JobTable::LoadJobs(StoredState& stored) {
  ended_.reserve(stored.jobs.size());
  records::JobRecord record;  // one for all: its strings keep their room
  for (auto& entry : stored.jobs) {
    if (auto status = ParseStored(kJobKind, entry, &record); !status.ok()) return status;
    next_order_ = std::max(next_order_, record.order() + 1);
    const v1::Job::State state = record.job().state();
    jobs_by_state_[state]++;
    const auto [place_of, is_new] = by_order_.try_emplace(record.order());
    if (!is_new) {
      return StoreCorrupt(absl::StrCat("job '", entry.first, "'"), "stands where another does");
    }
    quotas_.Add(record.job().labels(), UseOf(record));
    JobEntry& place = place_of->second;
    by_revision_[record.job().revision()] = record.order();
    if (!PassedCheckpoints(record).empty()) keepers_.insert(entry.first);
    if (!IsLive(state)) {
      ended_[entry.first] = record.order();
      place.ended_state = state;
      place.record = std::move(entry.second);
      continue;
    }
    auto job = std::make_unique<JobState>();
    job->record = record;
    job->etag_of = HashOfEtag(record.job());
    const auto progress = stored.progress.find(entry.first);
    job->progress_stored = progress != stored.progress.end();
    if (job->progress_stored && (IsPlaced(state) || state == v1::Job::CANCELLING)) {
      TakeUpProgress(progress->second, *job);
    }
    if (const auto& evaluated = record.evaluated_steps(); !evaluated.empty()) {
      job->record.set_evaluated_end(*evaluated.rbegin() + 1);
      job->record.clear_evaluated_steps();
    }
    place.job = job.get();
    live_.insert(entry.first);
    if (record.job().finish_step() > 0) finishing_.insert(entry.first);
    if (job->state() == v1::Job::QUEUED) queue_.Enter(*job);
    jobs_[entry.first] = std::move(job);
  }
  return absl::OkStatus();
}

// It may go on from there, where its group is found again. Its revision stays that of the record,
// until it is published.
void JobTable::TakeUpProgress(const std::string& bytes, JobState& job) {
  v1::Job progress;
  if (!progress.ParseFromString(bytes) || progress.revision() < job.job().revision()) return;
  progress.set_revision(job.job().revision());
  SetProgress(std::move(progress), &job.job());
  SetTotals(job.record);
}

void JobTable::LoadMetrics(const StoredState& stored) {
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
    job.record.set_losses_alone(0);
    job.record.set_losses_redone(0);
    job.record.clear_wait();
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

// ---- changing ----

JobState& JobTable::Create(const v1::Job& content, uint64_t random, const std::string& request_id) {
  std::string name = IdOf(random);
  while (FindEntry(name)) name = IdOf(++random);
  auto owned = std::make_unique<JobState>();
  JobState& job = *owned;
  job.job() = content;
  job.job().set_name(name);
  job.job().set_state(v1::Job::VALIDATING);
  turn_.Stamp(job.job().mutable_create_time());
  job.record.set_order(next_order_++);
  job.record.set_request_id(request_id);
  job.record.set_checkpoint_tokens(0);
  by_order_[job.record.order()].job = &job;
  live_.insert(name);
  jobs_by_state_[v1::Job::VALIDATING]++;
  jobs_[name] = std::move(owned);
  quotas_.Add(job.job().labels(), UseOf(job.record));
  LogCreated(job.job());
  AddEvent(job, "CREATED", "the job was created", v1::Job::STATE_UNSPECIFIED, v1::Job::VALIDATING);
  return job;
}

void JobTable::NoteUnsaved(JobState& job, const std::string& why) {
  const int64_t step = job.job().step(), last = job.job().last_checkpoint_step();
  if (step <= last) return;
  AddEvent(job, "LAST_STEP_NOT_SAVED",
           absl::StrCat("step ", step, ", its last, is not saved (", why, "): ",
                        last > 0 ? absl::StrCat("its newest checkpoint is that of step ", last)
                                 : "it has no checkpoint"));
}

void JobTable::DropMetricsBeyond(const JobState& job) {
  for (int64_t step = job.job().step() + 1; step <= job.record.furthest_step(); ++step) {
    turn_.Put(storage::DeleteEntry(kMetricsSeries, job.name(), step));
    turn_.Put(storage::DeleteEntry(kEvaluationSeries, job.name(), step));
  }
}

void JobTable::Transition(JobState& job, v1::Job::State to, const std::string& message) {
  const v1::Job::State from = job.state();
  assert(IsLegal(from, to));
  if (to == v1::Job::CANCELLED) NoteUnsaved(job, message);
  if (to == v1::Job::SUCCEEDED) DropMetricsBeyond(job);
  const QuotaUse used = UseOf(job.record);
  if (from == v1::Job::QUEUED) queue_.Leave(job);
  if (from == v1::Job::VALIDATING || std::exchange(job.reads_rows, false)) rows_.Leave(job.job());
  jobs_by_state_[from]--;
  jobs_by_state_[to]++;
  job.job().set_state(to);
  if (to == v1::Job::QUEUED) {
    job.record.set_queued_wall_us(turn_.wall_us());
    job.forecast = {};
    queue_.Enter(job);
  }
  if (to == v1::Job::QUEUED || to == v1::Job::PREPARING) job.since_us = turn_.now_us();
  const bool leaves_place =
      to == v1::Job::QUEUED ? !job.resumes : to == v1::Job::PAUSED || !IsLive(to);
  if (leaves_place && job.trains_since_us > 0) {
    left_lately_.Add(options_.LabelGroup(job.job().labels()), turn_.now_us() / 1e6);
  }
  if (leaves_place || to == v1::Job::QUEUED || to == v1::Job::PREPARING) job.trains_since_us = 0;
  // One that was sent away before its slot was loaded runs for a moment on its way out.
  if (to != v1::Job::RUNNING) job.moves_to.clear();
  if (to == v1::Job::RUNNING && job.moves_to.empty()) job.sent_elsewhere = false;
  if (to == v1::Job::RUNNING && !job.job().has_start_time()) {
    turn_.Stamp(job.job().mutable_start_time());
  }
  if (!IsLive(to)) {
    turn_.Stamp(job.job().mutable_end_time());
    live_.erase(job.name());
    finishing_.erase(job.name());
    put_away_.insert(job.name());
    job.job().clear_seconds_left();
    job.metrics.clear();
    job.evaluation = {};
    job.pace.Clear();
    job.work.Clear();
    queue_.EndPassing(job);
  }
  LogTransition(job, from, message);
  if (!IsPlaced(to) && to != v1::Job::CANCELLING) job.job().clear_group();
  quotas_.Take(job.job().labels(), used);
  quotas_.Add(job.job().labels(), UseOf(job.record));
  turn_.WantSchedule();
  const v1::Event event = AddEvent(job, "STATE_CHANGED", message, from, to);
  if (job.passing) job.passing->changes.push_back(event.revision());
}

void JobTable::Fail(JobState& job, v1::JobError::Category category, const std::string& reason,
                    const std::string& message, const std::string& field, int64_t line) {
  v1::JobError* error = job.job().mutable_error();
  error->set_category(category);
  error->set_reason(reason);
  error->set_message(Utf8(message));
  error->set_field(field);
  error->set_line(line);
  Transition(job, v1::Job::FAILED, absl::StrCat(reason, ": ", message));
}

void JobTable::FallBack(JobState& job) {
  ShowCheckpoint(job.record);
  job.evaluation = {};
  job.unwritten_step = 0;
  ForgetPace(job);
  Touch(job);
}

void JobTable::ForgetPace(JobState& job) {
  job.pace.Clear();
  job.work.Clear();
  job.job().clear_tokens_per_second();
  job.job().clear_seconds_left();
  TouchProgress(job);
}

void JobTable::HoldAgainst(JobState& job, const std::string& worker, int times) {
  assert(job.state() != v1::Job::QUEUED);
  job.failed_on[worker] += times;
  job.failed_us = turn_.now_us();
  failed_somewhere_.insert(job.name());
}

void JobTable::ForgiveWorkers() {
  std::erase_if(failed_somewhere_, [&](const std::string& name) {
    const auto found = jobs_.find(name);
    if (found == jobs_.end() || found->second->failed_on.empty()) return true;
    JobState& job = *found->second;
    if (turn_.now_us() - job.failed_us < kForgivenUs) return false;
    const auto forgive = [&] { job.failed_on.clear(); };
    job.state() == v1::Job::QUEUED ? queue_.Change(job, forgive) : forgive();
    turn_.WantSchedule();
    return true;
  });
}

void JobTable::Unplace(JobState& job, const std::string& message, Standing standing) {
  FallBack(job);
  const bool pauses = job.state() == v1::Job::PAUSING;
  job.resumes = standing == Standing::kFirst && !pauses;
  job.record.set_first_of_equals(standing == Standing::kFirstOfEquals && !pauses);
  if (job.resumes) job.goes_to = job.moves_to;
  Transition(job, pauses ? v1::Job::PAUSED : v1::Job::QUEUED, message);
}

void JobTable::Update(JobState& job, const v1::Job& values,
                      const std::vector<std::string>& fields) {
  const bool priority =
      std::ranges::count(fields, "priority") > 0 && values.priority() != job.job().priority();
  if (priority) {
    const std::string what =
        absl::StrCat("its priority is ", values.priority(), ", and was ", job.job().priority());
    const auto set = [&] { job.job().set_priority(values.priority()); };
    job.state() == v1::Job::QUEUED ? queue_.Change(job, set) : set();
    AddEvent(job, "UPDATED", what);
    turn_.WantSchedule();
  }
  if (std::ranges::count(fields, "labels") > 0) {
    const auto set = [&] { *job.job().mutable_labels() = values.labels(); };
    Recount(job, [&] { job.state() == v1::Job::QUEUED ? queue_.Change(job, set) : set(); });
    turn_.WantSchedule();
  }
  Touch(job);
}

// ---- what quotas count ----

QuotaUse JobTable::UseOf(const records::JobRecord& record) {
  const v1::Job::State state = record.job().state();
  const bool leaves = state == v1::Job::CANCELLING && !record.job().group().empty();
  QuotaUse use;
  use.running_jobs = IsPlaced(state) || leaves;
  use.queued_jobs = state == v1::Job::VALIDATING || state == v1::Job::QUEUED;
  use.stored_bytes = record.stored_bytes();
  return use;
}

void JobTable::Recount(JobState& job, absl::FunctionRef<void()> change) {
  quotas_.Take(job.job().labels(), UseOf(job.record));
  change();
  quotas_.Add(job.job().labels(), UseOf(job.record));
}

// Those that an older version committed are as large, for they hold the same adapter.
void JobTable::StoreBytes(JobState& job, int64_t step, int64_t bytes) {
  auto& known = *job.record.mutable_bytes_at_checkpoints();
  known[step] = bytes;
  int64_t stored = 0;
  for (const int64_t committed : job.record.checkpoint_steps()) {
    stored += known.insert({committed, bytes}).first->second;
  }
  Recount(job, [&] { job.record.set_stored_bytes(stored); });
}

void JobTable::TellUnwritten(JobState& job, int64_t step, const std::string& why) {
  const std::string told = Utf8(absl::StrCat(why, "; it is tried again"));
  const bool is_known = std::exchange(job.unwritten_step, step) == step;
  if (std::exchange(job.unwritten_why, told) != told) Touch(job);
  if (!is_known) AddEvent(job, "CHECKPOINT_NOT_WRITTEN", job.unwritten_why);
}

void JobTable::FreeBytes(JobState& job, int64_t step) {
  auto& known = *job.record.mutable_bytes_at_checkpoints();
  const auto found = known.find(step);
  if (found == known.end()) return;
  const int64_t stored = job.record.stored_bytes() - found->second;
  known.erase(found);
  Recount(job, [&] { job.record.set_stored_bytes(stored); });
}

v1::Event JobTable::AddEvent(JobState& job, const std::string& reason, const std::string& message,
                             v1::Job::State from, v1::Job::State to) {
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

void JobTable::CountFailure(JobState& job, const std::string& reason, const std::string& message) {
  Passing& passing = *job.passing;
  if (passing.event.reason() != reason) {
    passing.event = AddEvent(job, reason, message);
    passing.changes.clear();
    passing.state = job.state();
    return;
  }
  // Those that led elsewhere, as into a pause, stay: events form a chain.
  const bool returned = passing.state == job.state();
  for (const int64_t revision : passing.changes) {
    if (returned) turn_.Put(storage::DeleteEntry(kEventSeries, job.name(), revision));
  }
  passing.changes.clear();
  passing.state = job.state();
  v1::Event& event = passing.event;
  event.set_count(std::max(event.count(), 1) + 1);
  event.set_message(Utf8(message));
  turn_.Stamp(event.mutable_time());
  turn_.Put(
      storage::PutEntry(kEventSeries, job.name(), event.revision(), event.SerializeAsString()));
  Touch(job);
}

void JobTable::Delete(const JobState& job) {
  assert(!IsLive(job.state()));
  const std::string name = job.name();
  turn_.Put(storage::DeleteRecord(kJobKind, name));
  for (const char* series : {kEventSeries, kMetricsSeries, kEvaluationSeries, kCheckpointSeries}) {
    turn_.Put(storage::DeleteSeries(series, name));
  }
  turn_.Do(RemovePath{absl::StrCat("checkpoints/", name)});
  TellDeletion(job);
  quotas_.Take(job.job().labels(), UseOf(job.record));
  jobs_by_state_[job.state()]--;
  by_order_.erase(job.record.order());
  by_revision_.erase(job.job().revision());
  touched_.erase(name);
  put_away_.erase(name);
  jobs_.erase(name);
}

}  // namespace lorad::server
