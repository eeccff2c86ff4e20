// Finding jobs, whole or as bytes. There may be 100,000 that have ended, so of each the bytes of
// its record are kept, as the store has them; one that is to be changed is taken up until the end
// of the turn.
#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/jobs/job_table.h"
#include "server/core/rules/job_states.h"

namespace lorad::server {

const records::JobRecord& JobTable::RecordOf(const JobEntry& entry, records::JobRecord* space) {
  if (entry.job) return entry.job->record;
  const bool parsed = space->ParseFromString(entry.record);
  assert(parsed);  // it was at the start, or we made it
  (void)parsed;
  return *space;
}

const JobEntry* JobTable::FindEntry(const std::string& name) const {
  if (const auto ended = ended_.find(name); ended != ended_.end()) {
    return &by_order_.at(ended->second);
  }
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : &by_order_.at(found->second->record.order());
}

void JobTable::PutEndedAway() {
  std::erase_if(put_away_, [&](const std::string& name) {
    JobState& job = *jobs_.at(name);
    // A checkpoint may still be on its way, and a slot still to be freed.
    if (job.commits > 0 || groups_.HasMember(name)) return false;
    JobEntry& entry = by_order_.at(job.record.order());
    entry.ended_state = job.state();
    entry.record = job.record.SerializeAsString();
    entry.job = nullptr;
    ended_[name] = job.record.order();
    jobs_.erase(name);
    return true;
  });
}

JobState* JobTable::Find(const std::string& name) {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? TakeUp(name) : found->second.get();
}

const JobState* JobTable::FindWhole(const std::string& name) const {
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : found->second.get();
}

std::string JobTable::FirstLive(absl::FunctionRef<bool(const JobState&)> holds) const {
  for (const std::string& name : live_) {
    if (holds(*jobs_.at(name))) return name;
  }
  return "";
}

JobState* JobTable::TakeUp(const std::string& name) {
  const auto found = ended_.find(name);
  if (found == ended_.end()) return nullptr;
  JobEntry& entry = by_order_.at(found->second);
  ended_.erase(found);
  auto job = std::make_unique<JobState>();
  RecordOf(entry, &job->record);
  job->etag_of = HashOfEtag(job->job());
  entry.record = std::string();
  entry.job = job.get();
  put_away_.insert(name);
  return (jobs_[name] = std::move(job)).get();
}

std::vector<std::string> JobTable::CheckpointPaths() const {
  std::vector<std::string> paths;
  records::JobRecord space;
  for (const auto& [order, entry] : by_order_) {
    const records::JobRecord& record = RecordOf(entry, &space);
    for (const int64_t step : record.checkpoint_steps()) {
      paths.push_back(absl::StrCat("checkpoints/", record.job().name(), "/", step));
    }
  }
  return paths;
}

std::vector<std::string> JobTable::SettledFolders() const {
  std::vector<std::string> folders;
  folders.reserve(ended_.size());
  for (const auto& [name, order] : ended_) folders.push_back(absl::StrCat("checkpoints/", name));
  return folders;
}

void JobTable::CountSizes(CoreSizes* sizes) const {
  sizes->live_jobs = std::ssize(live_);
  sizes->whole_jobs = std::ssize(jobs_);
  sizes->ended_jobs_at_work = std::ssize(put_away_);
  for (const auto& [name, job] : jobs_) {
    sizes->metric_rows += std::ssize(job->metrics);
    if (IsLive(job->state())) {
      sizes->steps_after_checkpoints +=
          job->record.furthest_step() - job->job().last_checkpoint_step();
    }
  }
}

}  // namespace lorad::server
