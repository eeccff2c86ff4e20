#include "server/core/state.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/model_shape.h"
#include "server/errors/errors.h"
#include "storage/model_description.h"

namespace lorad::server {
namespace {

// Deleting every revision by itself would double the work of a turn.
constexpr int64_t kTrimEvery = 256;

template <class... Handlers>
struct Overloaded : Handlers... {
  using Handlers::operator()...;
};
template <class... Handlers>
Overloaded(Handlers...) -> Overloaded<Handlers...>;

template <class Message>
absl::Status Parse(const char* kind, const std::pair<std::string, std::string>& stored,
                   Message* message) {
  if (message->ParseFromString(stored.second)) return absl::OkStatus();
  return Error(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
               absl::StrCat("the stored ", kind, " '", stored.first, "' cannot be read"));
}

std::string RequestKey(const std::string& kind, const std::string& id) { return kind + "/" + id; }

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

absl::Status Core::State::Load(const StoredState& stored) {
  for (const auto& entry : stored.models) {
    ModelState model;
    if (auto status = Parse(kModelKind, entry, &model.record); !status.ok()) return status;
    auto description = storage::DescribeModel(model.record.config_json());
    if (!description.ok()) return description.status();
    model.shape = ShapeOf(*description);
    models_[entry.first] = std::move(model);
  }
  for (const auto& entry : stored.datasets) {
    if (auto status = Parse(kDatasetKind, entry, &datasets_[entry.first]); !status.ok()) {
      return status;
    }
  }
  for (const auto& entry : stored.adapters) {
    if (auto status = Parse(kAdapterKind, entry, &adapters_[entry.first]); !status.ok()) {
      return status;
    }
  }
  for (const auto& entry : stored.rows) {
    if (auto status = Parse(kRowsKind, entry, &rows_[entry.first]); !status.ok()) return status;
  }
  for (const auto& entry : stored.requests) {
    if (auto status = Parse(kRequestKind, entry, &requests_[entry.first]); !status.ok()) {
      return status;
    }
  }
  starts_ = stored.starts + 1;
  for (const auto& entry : stored.jobs) {
    auto job = std::make_unique<JobState>();
    if (auto status = Parse(kJobKind, entry, &job->record); !status.ok()) return status;
    next_order_ = std::max(next_order_, job->record.order() + 1);
    by_order_[job->record.order()] = job.get();
    jobs_by_state_[job->state()]++;
    if (IsLive(job->state())) live_.insert(entry.first);
    jobs_[entry.first] = std::move(job);
  }
  for (const auto& [name, row] : stored.metrics) {
    if (JobState* job = FindJob(name)) job->metrics[row.step()] = row;
  }
  revision_ = stored.last_revision;
  trimmed_revision_ = stored.oldest_revision - 1;
  next_epoch_ = stored.last_epoch + 1;
  return absl::OkStatus();
}

std::vector<Effect> Core::State::Recover(Moment now) {
  now_us_ = now.steady_us;
  wall_us_ = start_wall_us_ = now.wall_us;
  Put(storage::PutRecord(kMetaKind, kStartsKey, absl::StrCat(starts_)));
  const int64_t oldest_us = wall_us_ - options_.request_ids_days * 24 * 3600 * int64_t{1'000'000};
  std::erase_if(requests_, [&](const auto& entry) {
    if (entry.second.time_us() >= oldest_us) return false;
    Put(storage::DeleteRecord(kRequestKind, entry.first));
    return true;
  });
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
    } else if (EnsureRows(job.job())) {
      SettleJob(job);
    }
  }
  schedule_ = true;
  return EndTurn();
}

std::vector<std::string> Core::State::PathsInUse() const {
  std::vector<std::string> paths;
  for (const auto& [name, dataset] : datasets_) paths.push_back(dataset.path());
  for (const auto& [name, adapter] : adapters_) paths.push_back(adapter.path());
  for (const auto& [name, job] : jobs_) {
    for (const int64_t step : job->record.checkpoint_steps()) {
      paths.push_back(absl::StrCat("checkpoints/", name, "/", step));
    }
  }
  return paths;
}

// ---- turns ----

std::vector<Effect> Core::State::Apply(const Event& event) {
  now_us_ = std::max(now_us_, event.time.steady_us);
  wall_us_ = event.time.wall_us;
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
                 [&](const UploadMoved& content) { OnMoved(content); },
                 [&](const CheckpointWritten& content) { OnWritten(content); },
                 [&](const TimerFired& content) { OnTimer(content); },
             },
             event.content);
  return EndTurn();
}

std::vector<Effect> Core::State::EndTurn() {
  // A group that moves on can make room, and a decision can give a group something to do; every
  // round takes at least one job or group a step further.
  do {
    if (std::exchange(schedule_, false)) Schedule();
    std::vector<std::string> names;
    for (const auto& [name, group] : groups_) names.push_back(name);
    for (const std::string& name : names) {
      if (GroupState* group = FindGroup(name)) Advance(*group);
    }
  } while (schedule_);
  FinishStop();
  AnswerEstimates();
  const std::set<std::string> touched = touched_;
  for (const std::string& name : touched) {
    if (JobState* job = FindJob(name)) Publish(*job);
  }
  touched_.clear();
  if (revision_ - options_.watch_revisions_max >= trimmed_revision_ + kTrimEvery) {
    trimmed_revision_ = revision_ - options_.watch_revisions_max;
    Put(storage::TrimSeries(kRevisionSeries, "", trimmed_revision_));
  }
  std::vector<Effect> effects;
  if (!mutations_.empty()) effects.push_back(Persist{std::exchange(mutations_, {})});
  for (Effect& effect : effects_) effects.push_back(std::move(effect));
  effects_.clear();
  return effects;
}

void Core::State::Fail(uint64_t request, absl::Status status) {
  assert(!status.ok());
  Do(Reply{request, std::move(status), {}});
}

void Core::State::Answer(uint64_t request, ReplyValue value) {
  Do(Reply{request, absl::OkStatus(), std::move(value)});
}

void Core::State::Warn(std::string message) { Do(Note{Note::Level::kWarning, std::move(message)}); }

void Core::State::SetTime(google::protobuf::Timestamp* time) const {
  time->set_seconds(wall_us_ / 1'000'000);
  time->set_nanos(static_cast<int32_t>(wall_us_ % 1'000'000) * 1000);
}

void Core::State::Publish(JobState& job) {
  touched_.erase(job.name());
  job.job().set_revision(++revision_);
  job.job().set_etag(absl::StrCat(revision_));
  Put(storage::PutRecord(kJobKind, job.name(), job.record.SerializeAsString()));
  v1::WatchJobsResponse message;
  *message.mutable_job() = View(job);
  message.set_revision(revision_);
  std::string bytes = message.SerializeAsString();
  Put(storage::PutEntry(kRevisionSeries, "", revision_, bytes));
  Do(Announce{revision_, job.name(), std::move(bytes)});
}

v1::Event Core::State::AddEvent(JobState& job, const std::string& reason,
                                const std::string& message, v1::Job::State from,
                                v1::Job::State to) {
  v1::Event event;
  event.set_revision(++revision_);
  SetTime(event.mutable_time());
  event.set_job(job.name());
  event.set_reason(reason);
  event.set_message(Utf8(message));
  event.set_from_state(from);
  event.set_to_state(to);
  Put(storage::PutEntry(kEventSeries, job.name(), event.revision(), event.SerializeAsString()));
  Touch(job);
  return event;
}

void Core::State::Transition(JobState& job, v1::Job::State to, const std::string& message) {
  const v1::Job::State from = job.state();
  assert(IsLegal(from, to));
  if (from == v1::Job::QUEUED) LeaveQueue(job);
  if (from == v1::Job::VALIDATING || std::exchange(job.reads_rows, false)) LeaveChecks(job.job());
  jobs_by_state_[from]--;
  jobs_by_state_[to]++;
  job.job().set_state(to);
  if (to == v1::Job::QUEUED) EnterQueue(job);
  if (to == v1::Job::RUNNING && !job.job().has_start_time()) {
    SetTime(job.job().mutable_start_time());
  }
  if (!IsLive(to)) {
    SetTime(job.job().mutable_end_time());
    live_.erase(job.name());
    job.job().clear_seconds_left();
    job.metrics.clear();
    job.evaluation.clear();
    job.pace.clear();
    job.passing.reset();
  }
  if (to == v1::Job::QUEUED || !IsLive(to)) job.job().clear_group();
  schedule_ = true;
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
  return {!job.resumes, -job.job().priority(), job.record.order()};
}

std::string Core::State::QueueShape(const JobState& job) {
  const v1::Job& content = job.job();
  return absl::StrCat(job.resumes, "/", content.priority(), "/", job.record.longest_tokens(), "/",
                      content.adapter().rank(), "/",
                      absl::StrJoin(content.adapter().target_modules(), ","), "/",
                      content.base_model());
}

void Core::State::EnterShapes(JobState& job) {
  shapes_[QueueShape(job)][KeyOf(job)] = &job;
  schedule_ = true;
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
  schedule_ = true;
}

void Core::State::LeaveQueue(JobState& job) {
  queue_.erase(KeyOf(job));
  LeaveShapes(job);
  job.resumes = false;
  places_known_ = false;
  job.why.clear();
}

void Core::State::FallBack(JobState& job) {
  const int64_t step = job.job().last_checkpoint_step();
  int64_t tokens = job.job().tokens();
  for (const auto& [done, row] : job.metrics) {
    if (done > step && done <= job.job().step()) tokens -= row.tokens();
  }
  job.job().set_tokens(tokens);
  job.job().set_step(step);
  job.job().clear_tokens_per_second();
  job.job().clear_seconds_left();
  job.evaluation_step = -1;
  job.evaluation.clear();
  job.pace.clear();
  Touch(job);
}

JobState* Core::State::FindJob(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

// ---- request ids ----

bool Core::State::AnsweredBefore(uint64_t request, const char* kind, const RequestId& id) {
  if (id.id.empty()) return false;
  const auto found = requests_.find(RequestKey(kind, id.id));
  if (found == requests_.end()) return false;
  if (found->second.content() != id.content) {
    Fail(request, RequestIdReused(id.id));
    return true;
  }
  absl::StatusOr<ReplyValue> value = Find(kind, found->second.name());
  value.ok() ? Answer(request, *std::move(value)) : Fail(request, value.status());
  return true;
}

void Core::State::KeepRequest(const char* kind, const RequestId& id, const std::string& name) {
  if (id.id.empty()) return;
  const std::string key = RequestKey(kind, id.id);
  records::RequestRecord& record = requests_[key];
  record.set_content(id.content);
  record.set_name(name);
  record.set_time_us(wall_us_);
  Put(storage::PutRecord(kRequestKind, key, record.SerializeAsString()));
}

absl::StatusOr<ReplyValue> Core::State::Find(const std::string& kind, const std::string& name) {
  if (kind == kJobKind) {
    if (JobState* job = FindJob(name)) {
      if (touched_.contains(name)) Publish(*job);
      return ReplyValue(View(*job));
    }
  } else if (kind == kModelKind) {
    if (auto found = models_.find(name); found != models_.end()) {
      return ReplyValue(found->second.record.model());
    }
  } else if (kind == kDatasetKind) {
    if (auto found = datasets_.find(name); found != datasets_.end()) {
      return ReplyValue(found->second.dataset());
    }
  } else if (kind == kAdapterKind) {
    if (auto found = adapters_.find(name); found != adapters_.end()) {
      return ReplyValue(found->second.adapter());
    }
  }
  return NotFound(kind, name);
}

}  // namespace lorad::server
