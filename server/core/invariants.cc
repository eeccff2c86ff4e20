// Whether the tables agree, each by itself and with the others.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "server/core/state.h"

namespace lorad::server {
namespace {

absl::Status Broken(const std::string& what) { return absl::InternalError("core: " + what); }

// Another job's checkpoint may be given up under it (LoseCheckpoint).
bool UsesWhatIsGone(const Catalog& catalog, const v1::Job& job) {
  const std::string& source = job.adapter().init_from();
  const bool names_adapter = !source.empty() && source.find('/') == std::string::npos;
  return !catalog.HasModel(job.base_model()) || !catalog.HasDataset(job.training_dataset()) ||
         (!job.validation_dataset().empty() && !catalog.HasDataset(job.validation_dataset())) ||
         (names_adapter && !catalog.HasAdapter(source));
}

}  // namespace

// A group and its workers name each other, and the catalog has its base model.
absl::Status Core::State::CheckGroups() const {
  for (const auto& [name, group] : groups_.all()) {
    for (const StageState& stage : group.stages) {
      const auto worker = cluster_.all().find(stage.worker);
      if (worker == cluster_.all().end() || worker->second.group != name) {
        return Broken(name + " is not the group of its worker");
      }
      const bool awaited = group.returning() && !stage.returned;
      if (awaited != (worker->second.connection == 0)) {
        return Broken(name + " waits for a worker that is there, or not for one that is lost");
      }
    }
    if (!catalog_.HasModel(group.base_model)) return Broken(name + " has a model that is gone");
  }
  for (const auto& [name, worker] : cluster_.all()) {
    if (worker.group.empty()) continue;
    const GroupState* group = groups_.Find(worker.group);
    if (!group ||
        std::ranges::find(group->stages, name, &StageState::worker) == group->stages.end()) {
      return Broken("worker " + name + " has no such group");
    }
  }
  return absl::OkStatus();
}

// A live job's names are in the catalog; where it is placed it is a member; what is being written
// or read for it is counted.
absl::Status Core::State::CheckJobs() const {
  std::map<std::string, int> commits;
  for (const auto& [number, commit] : commits_) commits[commit.job]++;
  std::set<std::string> looks;
  for (const auto& [number, look] : looks_) looks.insert(look.job);
  for (const std::string& name : jobs_.live()) {
    const JobState& job = *jobs_.FindWhole(name);
    if (UsesWhatIsGone(catalog_, job.job())) return Broken(name + " uses what is not there");
    if (IsPlaced(job.state())) {
      const GroupState* group = groups_.Find(job.job().group());
      if (!group || !group->members.contains(name)) {
        return Broken(name + " is placed and in no group");
      }
    }
    const auto counted = commits.find(name);
    if (job.commits != (counted == commits.end() ? 0 : counted->second)) {
      return Broken("checkpoints of " + name + " are being written, or not");
    }
    if (job.reads_content && !looks.contains(name)) {
      return Broken(name + " waits for what nobody reads");
    }
  }
  for (const std::string& name : rows_.WaitingJobs()) {
    const JobState* job = jobs_.FindWhole(name);
    if (!job || (job->state() != v1::Job::VALIDATING && !job->reads_rows)) {
      return Broken("a check of rows has " + name + " among those who wait for it");
    }
  }
  return absl::OkStatus();
}

absl::Status Core::State::CheckInvariants() const {
  absl::Status status = turn_.CheckInvariants();
  status.Update(catalog_.CheckInvariants());
  status.Update(rows_.CheckInvariants());
  status.Update(groups_.CheckInvariants());
  status.Update(quotas_.CheckInvariants());
  status.Update(jobs_.CheckInvariants());
  status.Update(cluster_.CheckInvariants());
  status.Update(generations_.CheckInvariants([&](const std::string& group, const std::string& of) {
    const GroupState* found = groups_.Find(group);
    return found && found->members.contains(of);
  }));
  status.Update(CheckGroups());
  status.Update(CheckJobs());
  return status;
}

}  // namespace lorad::server
