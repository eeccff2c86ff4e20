// Jobs that have ended: there may be 100,000 of them, so of each the bytes of its record are kept,
// as the store has them. Whoever changes one takes it up until the end of the turn.
#include <algorithm>
#include <cassert>

#include "server/core/state.h"

namespace lorad::server {

const records::JobRecord& Core::State::RecordOf(const JobEntry& entry, records::JobRecord* space) {
  if (entry.job) return entry.job->record;
  const bool parsed = space->ParseFromString(entry.record);
  assert(parsed);  // it was at the start, or we made it
  (void)parsed;
  return *space;
}

const JobEntry* Core::State::FindEntry(const std::string& name) const {
  if (const auto ended = ended_.find(name); ended != ended_.end()) {
    return &by_order_.at(ended->second);
  }
  const auto found = jobs_.find(name);
  return found == jobs_.end() ? nullptr : &by_order_.at(found->second->record.order());
}

void Core::State::PutEndedAway() {
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

JobState* Core::State::TakeUp(const std::string& name) {
  const auto found = ended_.find(name);
  if (found == ended_.end()) return nullptr;
  JobEntry& entry = by_order_.at(found->second);
  ended_.erase(found);
  auto job = std::make_unique<JobState>();
  RecordOf(entry, &job->record);
  entry.record = std::string();
  entry.job = job.get();
  put_away_.insert(name);
  return (jobs_[name] = std::move(job)).get();
}

void Core::State::Forget(const JobState& job) {
  const std::string name = job.name();
  jobs_by_state_[job.state()]--;
  by_order_.erase(job.record.order());
  by_revision_.erase(job.job().revision());
  touched_.erase(name);
  put_away_.erase(name);
  jobs_.erase(name);
}

}  // namespace lorad::server
