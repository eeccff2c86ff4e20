#include "server/core/state.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/overloaded.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"

namespace lorad::server {

// ---- start ----

Core::State::State(const CoreOptions& options)
    : options_(options),
      answers_(options_, turn_),
      catalog_(turn_, answers_),
      rows_(options_, turn_, catalog_),
      groups_(turn_),
      quotas_(turn_),
      jobs_(options_, turn_, rows_, groups_, quotas_),
      cluster_(options_, turn_),
      generations_(turn_) {}

absl::Status Core::State::Load(StoredState stored) {
  if (absl::Status status = catalog_.Load(stored); !status.ok()) return status;
  if (absl::Status status = rows_.Load(stored.rows); !status.ok()) return status;
  if (absl::Status status = answers_.Load(std::move(stored.requests)); !status.ok()) return status;
  if (absl::Status status = quotas_.Load(stored.quotas); !status.ok()) return status;
  if (absl::Status status = jobs_.Load(stored); !status.ok()) return status;
  for (const std::string& name : jobs_.live()) {
    const std::string& model = jobs_.FindWhole(name)->job().base_model();
    if (catalog_.HasModel(model)) continue;
    return StoreCorrupt(absl::StrCat("job '", name, "'"),
                        absl::StrCat("is of the model '", model, "', which is not stored"));
  }
  if (absl::Status status = cluster_.Load(stored.workers); !status.ok()) return status;
  if (absl::Status status = cluster_.fits().Load(stored.fits); !status.ok()) return status;
  groups_.Load(stored.last_epoch);
  for (const auto& entry : stored.groups) {
    records::GroupRecord& record = stored_groups_.emplace_back();
    if (absl::Status status = ParseStored(kGroupKind, entry, &record); !status.ok()) return status;
    if (record.group() == entry.first) continue;
    record.Clear();  // of another name, or emptied: it is formed again, and its record removed
    record.set_group(entry.first);
  }
  stored_windows_ = {stored.windows.begin(), stored.windows.end()};
  return absl::OkStatus();
}

std::vector<Effect> Core::State::Recover(Moment now, int64_t starts_before) {
  turn_.Start(now, starts_before);
  answers_.Prune();
  cluster_.Start();
  TakeUpGroups();
  const std::set<std::string> live = jobs_.live();
  for (const std::string& name : live) {
    JobState& job = *jobs_.Find(name);
    // Times count on, by the wall's clock, which may have been set back meanwhile.
    const auto steady_us = [&](int64_t wall_us) {
      return now.steady_us - std::max<int64_t>(turn_.wall_us() - wall_us, 0);
    };
    const int64_t queued_us = job.record.queued_wall_us(), moved_us = job.record.moved_wall_us();
    const bool waits_on = job.state() == v1::Job::QUEUED && queued_us > 0;
    job.since_us = waits_on ? steady_us(queued_us) : now.steady_us;
    if (moved_us > 0) job.moved_us = steady_us(moved_us);
    GroupState* group = GroupOf(job);
    const bool waits = group && group->members.contains(name);
    if (job.state() == v1::Job::CANCELLING) {
      if (waits) GroupTable::Leave(group, name);
      jobs_.Transition(job, v1::Job::CANCELLED, "the coordinator was started again");
    } else if (IsPlaced(job.state()) && waits) {
      jobs_.Touch(job);  // its progress is taken up
    } else if (IsPlaced(job.state())) {
      jobs_.Unplace(job,
                    absl::StrCat("the coordinator was started again; the job goes on from step ",
                                 job.job().last_checkpoint_step()));
    } else if (job.state() == v1::Job::VALIDATING && rows_.Ensure(job.job())) {
      SettleJob(job);
    }
    if (job.record.has_wait() && !job.passing) WaitOn(job);
  }
  // Not in this turn: what is on the disk is first held against what the records name (leftovers.h).
  drop_again_ = jobs_.TakeKeepers();
  if (!drop_again_.empty()) turn_.Do(SetTimer{kDropAgain, turn_.now_us()});
  groups_changed_ = true;
  turn_.WantSchedule();
  return EndTurn(false);
}

std::vector<std::string> Core::State::PathsInUse() const {
  std::vector<std::string> paths = catalog_.Paths();
  for (std::string& path : jobs_.CheckpointPaths()) paths.push_back(std::move(path));
  return paths;
}

std::vector<std::string> Core::State::SettledFolders() const { return jobs_.SettledFolders(); }

CoreSizes Core::State::SizesNow() const {
  CoreSizes sizes;
  jobs_.CountSizes(&sizes);
  sizes.request_ids = answers_.size();
  return sizes;
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
  // Of what workers say it depends on what that is (reports.cc), and of what clients ask, on whether
  // it changes anything (EndTurn).
  const bool asked = std::holds_alternative<WorkerSaid>(event.content) ||
                     std::holds_alternative<Requested>(event.content);
  groups_changed_ |= !asked;
  return EndTurn(event.more_follow);
}

std::vector<Effect> Core::State::EndTurn(bool more_follow) {
  // A group that moves on can make room, and a decision can give a group something to do; every
  // round takes at least one job or group a step further.
  do {
    EndFinished();
    if (!more_follow && turn_.TakeScheduleWanted()) Schedule();
    for (const std::string& name : groups_.names()) {
      if (GroupState* group = groups_.Find(name)) Advance(*group);
    }
  } while (turn_.schedule_wanted() && !more_follow);
  if (!more_follow) ForecastIfDue();
  FinishStop();
  AnswerEstimates();
  generations_.Tell();
  groups_changed_ |= turn_.puts();
  if (!more_follow && std::exchange(groups_changed_, false)) StoreGroups();
  jobs_.Settle();
  return turn_.End();
}

}  // namespace lorad::server
