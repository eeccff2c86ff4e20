// Whether the indices of the jobs agree.
#include "absl/strings/str_cat.h"
#include "server/core/jobs/job_table.h"
#include "server/core/rules/job_states.h"

namespace lorad::server {
namespace {

absl::Status Broken(const std::string& what) { return absl::InternalError("jobs: " + what); }

}  // namespace

// Every job once, by order, by name and by revision.
absl::Status JobTable::CheckEntries() const {
  if (by_order_.size() != jobs_.size() + ended_.size()) {
    return Broken("one is found twice, or never");
  }
  if (by_order_.size() != by_revision_.size()) return Broken("one has no revision, or two");
  std::map<int, int64_t> counted;
  for (const auto& [order, entry] : by_order_) {
    counted[entry.state()]++;
    if (order >= next_order_) return Broken("its place may be given out again");
  }
  for (const auto& [state, count] : jobs_by_state_) {
    const auto found = counted.find(state);
    const int64_t there = found == counted.end() ? 0 : found->second;
    if (count != there) return Broken(absl::StrCat(count, " counted for ", there, " in a state"));
  }
  for (const auto& [name, order] : ended_) {
    const auto entry = by_order_.find(order);
    if (entry == by_order_.end() || entry->second.job || IsLive(entry->second.ended_state)) {
      return Broken(name + " is not where ended jobs are");
    }
  }
  for (const auto& [revision, order] : by_revision_) {
    if (revision > revision_) return Broken("a revision of the future");
    if (!by_order_.contains(order)) return Broken("a revision leads nowhere");
  }
  return absl::OkStatus();
}

absl::Status JobTable::CheckWhole(const std::string& name, const JobState& job) const {
  if (job.name() != name) return Broken("a job under the name " + name);
  const auto entry = by_order_.find(job.record.order());
  if (entry == by_order_.end() || entry->second.job != &job) {
    return Broken(name + " stands at another's place");
  }
  const auto revision = by_revision_.find(job.job().revision());
  if (revision == by_revision_.end() || revision->second != job.record.order()) {
    return Broken("its newest revision does not lead to " + name);
  }
  const bool is_live = IsLive(job.state());
  if (live_.contains(name) != is_live || put_away_.contains(name) == is_live) {
    return Broken(name + " counts as live and has ended, or the other way round");
  }
  if (finishing_.contains(name) != (is_live && job.job().finish_step() > 0)) {
    return Broken(name + " is to finish, and does not, or the other way round");
  }
  if (job.reads_rows && job.state() != v1::Job::QUEUED) {
    return Broken(name + " reads its rows, and is not QUEUED");
  }
  if (is_live && job.moved_us.has_value() != (job.record.moved_wall_us() > 0)) {
    return Broken(name + " was moved, and its record does not say so, or the other way round");
  }
  const bool may_have_group = IsPlaced(job.state()) || job.state() == v1::Job::CANCELLING;
  if (job.job().group().empty() ? IsPlaced(job.state()) : !may_have_group) {
    return Broken(name + " has a group that it must not have, or none");
  }
  return absl::OkStatus();
}

// Jobs that are put away count by their stored bytes alone, and these are not read.
absl::Status JobTable::CheckUses() const {
  std::map<std::string, QuotaUse> counted;
  for (const auto& [name, job] : jobs_) {
    const QuotaUse use = UseOf(job->record);
    int64_t stored = 0;
    for (const auto& [step, bytes] : job->record.bytes_at_checkpoints()) stored += bytes;
    if (stored != use.stored_bytes)
      return Broken(name + " stores more or fewer bytes than it says");
    for (const auto& [key, value] : job->job().labels()) {
      QuotaUse& all = counted[absl::StrCat(key, "=", value)];
      all.running_jobs += use.running_jobs;
      all.queued_jobs += use.queued_jobs;
      all.stored_bytes += use.stored_bytes;
    }
  }
  for (const auto& [label, use] : quotas_.uses()) counted.try_emplace(label);
  for (const auto& [label, use] : counted) {
    const QuotaUse kept = quotas_.UseOf(label);
    if (kept.running_jobs != use.running_jobs || kept.queued_jobs != use.queued_jobs ||
        kept.stored_bytes < use.stored_bytes) {
      return Broken("quotas count other jobs of " + label + " than there are");
    }
  }
  return absl::OkStatus();
}

absl::Status JobTable::CheckInvariants() const {
  if (absl::Status status = CheckEntries(); !status.ok()) return status;
  if (!touched_.empty()) return Broken(*touched_.begin() + " has changed and was not published");
  if (jobs_.size() != live_.size() + put_away_.size()) {
    return Broken("one is neither live nor ended");
  }
  std::set<const JobState*> queued;
  std::map<std::string, const JobState*> live;
  for (const auto& [name, job] : jobs_) {
    if (absl::Status status = CheckWhole(name, *job); !status.ok()) return status;
    if (job->state() == v1::Job::QUEUED) queued.insert(job.get());
    if (IsLive(job->state())) live[name] = job.get();
  }
  if (absl::Status status = CheckUses(); !status.ok()) return status;
  return queue_.CheckInvariants(queued, live);
}

}  // namespace lorad::server
