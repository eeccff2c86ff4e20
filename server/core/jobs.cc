// Jobs as clients see them.
#include <algorithm>
#include <cassert>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/job_progress.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"

namespace lorad::server {
namespace {

constexpr int64_t kLiveJobsMax = 100'000;
constexpr int kIdCharacters = 8;
// A turn that lists jobs passes over so many at the most, lest others wait for it: 500 whose record
// must be read, or 8,000 whose state says that they do not match. A few milliseconds.
constexpr int64_t kListWorkMax = 8'000;
constexpr int64_t kReadWork = 16;

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

}  // namespace

// ---- create ----

absl::Status Core::State::CheckReferences(const v1::Job& job) const {
  std::vector<FieldViolation> violations;
  if (!catalog_.HasModel(job.base_model())) {
    violations.push_back(
        {"base_model", absl::StrCat("there is no model '", job.base_model(), "'")});
  }
  const std::pair<const char*, const std::string*> datasets[] = {
      {"training_dataset", &job.training_dataset()},
      {"validation_dataset", &job.validation_dataset()}};
  for (const auto& [field, dataset] : datasets) {
    if (!dataset->empty() && !catalog_.HasDataset(*dataset)) {
      violations.push_back({field, absl::StrCat("there is no dataset '", *dataset, "'")});
    }
  }
  const std::string& source = job.adapter().init_from();
  if (const size_t slash = source.find('/'); slash != std::string::npos) {
    const JobEntry* from = FindEntry(source.substr(0, slash));
    records::JobRecord space;
    int64_t step = 0;
    const bool known = from && absl::SimpleAtoi(source.substr(slash + 1), &step) &&
                       std::ranges::count(RecordOf(*from, &space).checkpoint_steps(), step) > 0;
    if (!known) {
      violations.push_back(
          {"adapter.init_from", absl::StrCat("there is no checkpoint '", source, "'")});
    }
  } else if (!source.empty() && !catalog_.HasAdapter(source)) {
    violations.push_back({"adapter.init_from", absl::StrCat("there is no adapter '", source, "'")});
  }
  if (!violations.empty()) return InvalidFields("job", violations);
  return absl::OkStatus();
}

bool Core::State::AnsweredBefore(uint64_t request, const CreateJob& content) {
  const auto find = [&](const std::string& name) -> absl::StatusOr<ReplyValue> {
    JobState* job = FindJob(name);
    if (!job) return NotFound(kJobKind, name);
    if (touched_.contains(name)) Publish(*job);
    return ReplyValue(View(*job));
  };
  return answers_.AnsweredBefore(request, kJobKind, content.request_id, find);
}

void Core::State::On(uint64_t request, const CreateJob& content) {
  if (!content.validate_only && AnsweredBefore(request, content)) return;
  if (!content.validate_only && !turn_.room().ok()) return turn_.Fail(request, turn_.room());
  if (absl::Status status = CheckReferences(content.job); !status.ok()) {
    return turn_.Fail(request, status);
  }
  if (stopping_) {
    return turn_.Fail(request,
                      Unavailable("SHUTTING_DOWN", "the coordinator is being stopped", 5000));
  }
  if (static_cast<int64_t>(live_.size()) >= kLiveJobsMax) {
    return turn_.Fail(request,
                      LimitExceeded("TOO_MANY_JOBS", "live jobs",
                                    absl::StrCat("there are ", kLiveJobsMax,
                                                 " live jobs: wait until some have ended")));
  }
  if (rows_.Ensure(content.job)) {
    // Known at once, so it is said at once.
    records::JobRecord record;
    *record.mutable_job() = content.job;
    v1::JobError error;
    if (absl::Status status = AcceptRows(record, &error); !status.ok()) {
      return turn_.Fail(request, status);
    }
    if (content.validate_only) return turn_.Answer(request, record.job());
  } else if (content.validate_only) {
    return rows_.Wait(request, content);
  }
  StoreJob(request, content);
}

void Core::State::StoreJob(uint64_t request, const CreateJob& content) {
  uint64_t random = content.random;
  std::string name = IdOf(random);
  while (FindEntry(name)) name = IdOf(++random);
  auto owned = std::make_unique<JobState>();
  JobState& job = *owned;
  job.job() = content.job;
  job.job().set_name(name);
  job.job().set_state(v1::Job::VALIDATING);
  turn_.Stamp(job.job().mutable_create_time());
  job.record.set_order(next_order_++);
  job.record.set_request_id(content.request_id.id);
  job.record.set_checkpoint_tokens(0);
  by_order_[job.record.order()].job = &job;
  live_.insert(name);
  jobs_by_state_[v1::Job::VALIDATING]++;
  jobs_[name] = std::move(owned);
  AddEvent(job, "CREATED", "the job was created", v1::Job::STATE_UNSPECIFIED, v1::Job::VALIDATING);
  if (rows_.Ensure(job.job())) SettleJob(job);
  Publish(job);
  v1::Job made = View(job);
  answers_.Keep(kJobKind, content.request_id, name, made);
  turn_.Answer(request, std::move(made));
}

// ---- read ----

void Core::State::RenumberQueue() const {
  if (places_known_) return;
  int place = 0;
  for (const auto& [key, job] : queue_) job->place = ++place;
  places_known_ = true;
}

v1::Job Core::State::View(const JobState& state) const {
  v1::Job job = state.job();
  if (job.state() == v1::Job::QUEUED) {
    RenumberQueue();
    job.mutable_queue()->set_place(state.place);
    job.mutable_queue()->set_why(!turn_.room().ok()  ? std::string(turn_.room().message())
                                 : state.why.empty() ? "waits to be scheduled"
                                                     : state.why);
  } else if (job.state() == v1::Job::VALIDATING && !state.why.empty()) {
    job.mutable_queue()->set_why(state.why);
  }
  const GroupState* group = groups_.Find(job.group());
  if (group && IsPlaced(job.state())) job.set_packed_with(GroupTable::OthersIn(*group));
  return job;
}

v1::Job Core::State::View(const JobEntry& entry) const {
  if (entry.job) return View(*entry.job);
  records::JobRecord record;
  RecordOf(entry, &record);
  return std::move(*record.mutable_job());
}

void Core::State::On(uint64_t request, const v1::GetJobRequest& content) {
  const JobEntry* job = FindEntry(content.name());
  job ? turn_.Answer(request, View(*job)) : turn_.Fail(request, NotFound(kJobKind, content.name()));
}

void Core::State::On(uint64_t request, const v1::ListJobsRequest& content) {
  absl::StatusOr<JobFilter> filter = JobFilter::Parse(content.filter());
  if (!filter.ok()) return turn_.Fail(request, filter.status());
  const std::string scope = absl::StrCat("jobs/", content.filter());
  absl::StatusOr<std::string> cursor = ReadPageToken(scope, content.page_token());
  if (!cursor.ok()) return turn_.Fail(request, cursor.status());
  auto end = by_order_.end();
  if (int64_t order = 0; !cursor->empty() && absl::SimpleAtoi(*cursor, &order)) {
    end = by_order_.lower_bound(order);
  }
  const int page_size = content.page_size() > 0 ? content.page_size() : kPageSizeDefault;
  v1::ListJobsResponse response;
  int64_t last = 0;
  int64_t work = 0;
  records::JobRecord space;  // one for all: its strings keep their room
  for (auto entry = std::make_reverse_iterator(end); entry != by_order_.rend(); ++entry) {
    if (work >= kListWorkMax) break;
    const bool may_match = filter->MayMatch(entry->second.state());
    const v1::Job* job = may_match ? &RecordOf(entry->second, &space).job() : nullptr;
    if (job && filter->Matches(*job)) {
      if (response.jobs_size() == page_size) break;
      if (content.view() == v1::ListJobsRequest::SUMMARY) {
        *response.add_jobs() = SummaryOf(*job);
      } else if (entry->second.job) {
        *response.add_jobs() = View(*entry->second.job);
      } else {
        response.add_jobs()->Swap(space.mutable_job());
      }
    } else {
      work += may_match ? kReadWork : 1;
    }
    last = entry->first;
  }
  if (!by_order_.empty() && last > by_order_.begin()->first) {
    response.set_next_page_token(MakePageToken(scope, absl::StrCat(last)));
  }
  turn_.Answer(request, std::move(response));
}

void Core::State::On(uint64_t request, const SnapshotJobs& content) {
  std::map<int64_t, int64_t> named;  // revision -> order
  for (const std::string& name : content.names) {
    const JobEntry* entry = FindEntry(name);
    if (!entry) return turn_.Fail(request, NotFound(kJobKind, name));
    records::JobRecord space;
    const records::JobRecord& record = RecordOf(*entry, &space);
    named[record.job().revision()] = record.order();
  }
  const std::map<int64_t, int64_t>& among = content.names.empty() ? by_revision_ : named;
  JobSnapshot snapshot;
  for (auto entry = among.upper_bound(content.after); entry != among.end(); ++entry) {
    if (content.limit > 0 && static_cast<int64_t>(snapshot.jobs.size()) == content.limit) break;
    snapshot.jobs.push_back(View(by_order_.at(entry->second)));
  }
  snapshot.revision = revision_;
  turn_.Answer(request, std::move(snapshot));
}

// ---- end ----

void Core::State::On(uint64_t request, const v1::CancelJobRequest& content) {
  JobState* job = FindJob(content.name());
  if (!job) return turn_.Fail(request, NotFound(kJobKind, content.name()));
  if (IsLive(job->state()) && job->state() != v1::Job::CANCELLING) {
    GroupState* group = IsPlaced(job->state()) ? GroupOf(*job) : nullptr;
    const std::string group_name = job->job().group();
    Transition(*job, v1::Job::CANCELLING, "cancelled by its user");
    if (!group) {
      Transition(*job, v1::Job::CANCELLED, "it was not running");
    } else {
      GroupTable::Leave(group, job->name());
      BeginCut(*group, GroupState::Then::kGoOn, "");
    }
    Publish(*job);
  }
  turn_.Answer(request, View(*job));
}

void Core::State::On(uint64_t request, const v1::DeleteJobRequest& content) {
  const std::string name = content.name();
  JobState* job = FindJob(name);
  if (!job) return turn_.Fail(request, NotFound(kJobKind, name));
  if (!content.etag().empty() && content.etag() != job->job().etag()) {
    return turn_.Fail(request,
                      Error(absl::StatusCode::kAborted, "ETAG_MISMATCH",
                            absl::StrCat("job '", name, "' has changed since: its etag is now ",
                                         job->job().etag())));
  }
  if (IsLive(job->state())) {
    return turn_.Fail(request,
                      PreconditionFailed("JOB_LIVE", absl::StrCat("job ", name),
                                         absl::StrCat("job '", name, "' is ", ToText(job->state()),
                                                      ": cancel it, and delete it once it has "
                                                      "ended")));
  }
  for (const std::string& live : live_) {
    if (jobs_.at(live)->job().adapter().init_from().starts_with(name + "/")) {
      return turn_.Fail(
          request, PreconditionFailed("IN_USE", absl::StrCat("job ", live),
                                      absl::StrCat("job '", live, "' starts from a checkpoint of '",
                                                   name, "': wait until it ends, or cancel it")));
    }
  }
  turn_.Put(storage::DeleteRecord(kJobKind, name));
  for (const char* series : {kEventSeries, kMetricsSeries, kEvaluationSeries, kCheckpointSeries}) {
    turn_.Put(storage::DeleteSeries(series, name));
  }
  turn_.Do(RemovePath{absl::StrCat("checkpoints/", name)});
  Forget(*job);
  turn_.Answer(request, std::monostate());
}

}  // namespace lorad::server
