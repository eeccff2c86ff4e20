// Jobs as clients see them.
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/evaluations_left.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/jobs/job_table.h"
#include "server/core/rules/job_states.h"
#include "server/errors/errors.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"
#include "server/validation/page_token.h"

namespace lorad::server {
namespace {

// A turn that lists jobs passes over so many at the most, lest others wait for it: 500 whose record
// must be read, or 8,000 whose state says that they do not match. A few milliseconds.
constexpr int64_t kListWorkMax = 8'000;
constexpr int64_t kReadWork = 16;

// All else is done, but the checkpoint with which it is to leave could not be written or sent so far;
// or one before it could not, which is still tried.
bool WaitsForItsSave(const JobState& job, const GroupState* group) {
  const bool is_saved = job.job().last_checkpoint_step() == job.job().step();
  if (job.unwritten_step == 0 || is_saved || !group) return false;
  if (job.state() == v1::Job::FINALIZING) return !HasEvaluationsLeft(job);
  const auto member = group->members.find(job.name());
  return member != group->members.end() && member->second.departing &&
         member->second.planned_step == member->second.done_step;
}

std::string AwaitsWorkers(const GroupState& group) {
  return absl::StrCat(group.name, " waits for its workers since the coordinator was started");
}

}  // namespace

v1::Job JobTable::View(const JobState& state) const {
  v1::Job job = state.job();
  if (job.state() == v1::Job::QUEUED) {
    job.mutable_queue()->set_place(queue_.PlaceOf(state));
    job.mutable_queue()->set_why(WhyQueued(state));
    if (state.forecast) *job.mutable_queue()->mutable_forecast() = ToProto(state.forecast);
  } else if (job.state() == v1::Job::VALIDATING && !state.why.empty()) {
    job.mutable_queue()->set_why(state.why);
  }
  const GroupState* group = groups_.Find(job.group());
  if (group && IsPlaced(job.state())) job.set_packed_with(GroupTable::OthersIn(*group));
  ShowStalled(&state, &job);
  return job;
}

std::string JobTable::WhyQueued(const JobState& state) const {
  if (!turn_.room().ok()) return std::string(turn_.room().message());
  if (const size_t before = queue_.Beyond(state); before > 0) {
    return absl::StrCat("behind ", before, " jobs like it, which come before it");
  }
  // Nothing is decided of it until then.
  if (state.commits > 0) return "the checkpoint that it goes on from is being written";
  if (state.reads_content) return "the checkpoint that it goes on from is being read";
  if (!state.why.empty()) return state.why;
  for (const auto& [name, group] : groups_.all()) {
    if (!group.members.contains(state.name())) continue;
    return absl::StrCat("its slot in ", name, " is not free yet");
  }
  return "waits to be scheduled";
}

std::string JobTable::WhyNoForecast(const JobState& state) const {
  switch (state.state()) {
    case v1::Job::QUEUED:
      return WhyQueued(state);
    case v1::Job::VALIDATING:
      return state.why.empty() ? "its rows are being checked" : state.why;
    case v1::Job::PAUSING:
    case v1::Job::PAUSED:
      return "its user has paused it";
    case v1::Job::CANCELLING:
      return "its user has cancelled it";
    default:
      break;
  }
  const std::string& name = state.job().group();
  const GroupState* group = groups_.Find(name);
  if (group && group->returning()) return AwaitsWorkers(*group);
  return absl::StrCat("it is leaving ", name, ", and where it goes on is not known yet");
}

void JobTable::ShowStalled(const JobState* state, v1::Job* job) const {
  if (job->state() == v1::Job::PAUSING || job->state() == v1::Job::CANCELLING) {
    job->clear_seconds_left();  // nobody waits for its end any more
  }
  if (!IsPlaced(job->state())) return;
  if (state && state->unwritten_step > 0) job->set_unsaved(state->unwritten_why);
  const GroupState* group = groups_.Find(job->group());
  if (!turn_.room().ok()) {
    SetStalled(std::string(turn_.room().message()), job);
  } else if (group && group->returning()) {
    SetStalled(AwaitsWorkers(*group), job);
  } else if (group && !group->silent.empty()) {
    SetStalled(absl::StrCat("worker '", group->silent, "' says nothing for now"), job);
  } else if (state && WaitsForItsSave(*state, group)) {
    SetStalled(absl::StrCat("the checkpoint of step ", job->step(),
                            ", its last here, is not written yet; its events say why"),
               job);
  }
}

v1::Job JobTable::View(const JobEntry& entry) const {
  if (entry.job) return View(*entry.job);
  records::JobRecord record;
  RecordOf(entry, &record);
  return std::move(*record.mutable_job());
}

void JobTable::On(uint64_t request, const v1::GetJobRequest& content) const {
  const JobEntry* job = FindEntry(content.name());
  job ? turn_.Answer(request, View(*job)) : turn_.Fail(request, NotFound(kJobKind, content.name()));
}

void JobTable::On(uint64_t request, const v1::ListJobsRequest& content) const {
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
        v1::Job& summary = *response.add_jobs();
        Summarize(*job, summary);
        ShowStalled(entry->second.job, &summary);
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

// By their revisions.
absl::StatusOr<std::map<int64_t, int64_t>> JobTable::Among(const SnapshotJobs& content) const {
  std::map<int64_t, int64_t> among;  // revision -> order
  const auto add = [&](const JobEntry& entry) {
    records::JobRecord space;
    const records::JobRecord& record = RecordOf(entry, &space);
    const int64_t revision = record.job().revision();
    if (content.after < revision) among[revision] = record.order();
  };
  for (const std::string& name : content.names) {
    const JobEntry* entry = FindEntry(name);
    if (!entry && content.after == 0) return NotFound(kJobKind, name);
    if (entry && (IsLive(entry->state()) || !content.live_only)) add(*entry);
  }
  if (!content.names.empty()) return among;
  for (const std::string& name : live_) add(*FindEntry(name));
  return among;
}

void JobTable::On(uint64_t request, const SnapshotJobs& content) const {
  const bool all = content.names.empty() && !content.live_only;
  const absl::StatusOr<std::map<int64_t, int64_t>> some =
      all ? std::map<int64_t, int64_t>() : Among(content);
  if (!some.ok()) return turn_.Fail(request, some.status());
  const std::map<int64_t, int64_t>& among = all ? by_revision_ : *some;
  JobSnapshot snapshot;
  for (auto entry = among.upper_bound(content.after); entry != among.end(); ++entry) {
    if (content.limit > 0 && static_cast<int64_t>(snapshot.jobs.size()) == content.limit) break;
    const JobEntry& job = by_order_.at(entry->second);
    if (entry->first <= content.up_to) {
      snapshot.jobs.push_back(View(job));
    } else {
      records::JobRecord space;
      snapshot.changed.push_back(RecordOf(job, &space).job().name());
    }
  }
  turn_.Answer(request, std::move(snapshot));
}

}  // namespace lorad::server
