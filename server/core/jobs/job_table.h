// The jobs: all of them in the order of arrival, the queue of those that wait, and the revisions
// under which they were published last.
//
// A job that is live, or on which somebody still works, is a JobState; one that has ended is the
// bytes of its record (JobEntry). Transition is the only function that changes a job's state, and
// Publish the only one that gives it a revision.
//
// Invariants: every job stands in the order of arrival and is found by its name, once, whole or as
// bytes; its newest revision leads to it; the counts by state are those of the jobs; the queue
// holds exactly those that are QUEUED; the use that Quotas has is that of the jobs; a job reads its
// rows again only while it is QUEUED, and has a group exactly while it is placed, or is CANCELLING.
// Between turns every change is published, and those that have ended and at whose side nobody works
// are put away.
//
// It knows the Turn, the Quotas, to which it reports what its jobs use, and the RowChecks, for a
// job that leaves a state waits for no rows any more; and it looks at the GroupTable for who shares
// a job's group. Threads: the core's one. Errors of Load: DATA_LOSS (STORE_CORRUPT). A reference to
// a JobState holds until the end of the turn.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "planner/schedule/schedule.h"
#include "server/core/catalog/row_checks.h"
#include "server/core/cluster/group_table.h"
#include "server/core/events/kept.h"
#include "server/core/events/options.h"
#include "server/core/events/stored_state.h"
#include "server/core/events/turn.h"
#include "server/core/jobs/job_queue.h"
#include "server/core/jobs/job_state.h"
#include "server/core/jobs/quotas.h"
#include "server/core/jobs/revision_ages.h"

namespace lorad::server {

class JobTable {
 public:
  JobTable(const CoreOptions& options, Turn& turn, RowChecks& rows, const GroupTable& groups,
           Quotas& quotas)
      : options_(options),
        turn_(turn),
        rows_(rows),
        groups_(groups),
        quotas_(quotas),
        queue_(options, turn, quotas),
        ages_(options.watch_keep_ms * 1000) {}
  // Takes what it needs out of `stored`. REQUIRES: the quotas are loaded.
  absl::Status Load(StoredState& stored);

  // ---- finding (ended_jobs.cc) ----
  // Null where there is none. A job whose record alone was kept is made a JobState again, until the
  // end of the turn.
  JobState* Find(const std::string& name);
  // Null where it is not kept whole.
  const JobState* FindWhole(const std::string& name) const;
  // Null where there is none. To look at it; Find is for those who change it.
  const JobEntry* FindEntry(const std::string& name) const;
  // Its share of what quotas limit.
  static QuotaUse UseOf(const records::JobRecord& record);
  static const records::JobRecord& RecordOf(const JobEntry& entry, records::JobRecord* space);
  const std::set<std::string>& live() const { return live_; }  // names
  // Names of live jobs that were asked to finish: a copy, for the caller may end them.
  std::set<std::string> finishing() const { return finishing_; }
  void NoteFinishing(const JobState& job) { finishing_.insert(job.name()); }
  // Once, after Load: names of jobs whose settings let checkpoints go.
  std::set<std::string> TakeKeepers() { return std::exchange(keepers_, {}); }
  // The first live job, by name, of which it holds; empty: it holds of none.
  std::string FirstLive(absl::FunctionRef<bool(const JobState&)> holds) const;
  const std::map<int, int64_t>& count_by_state() const { return jobs_by_state_; }
  // The folders of all checkpoints that records name, below the data directory.
  std::vector<std::string> CheckpointPaths() const;
  // The folders of the checkpoints of jobs that have ended and are put away.
  std::vector<std::string> SettledFolders() const;
  void CountSizes(CoreSizes* sizes) const;

  // ---- changing ----
  // A job of that content, VALIDATING. Its name is made of `random`.
  JobState& Create(const v1::Job& content, uint64_t random, const std::string& request_id);
  // REQUIRES: the change is legal (job_states.h).
  void Transition(JobState& job, v1::Job::State to, const std::string& message);
  void Fail(JobState& job, v1::JobError::Category category, const std::string& reason,
            const std::string& message, const std::string& field = "", int64_t line = 0);
  // The job goes on from its newest checkpoint: what came after it is not done any more.
  void FallBack(JobState& job);
  // The same, and it is in no group any more: PAUSED where it was PAUSING, else QUEUED, and there
  // behind those that wait as it does, before its equals, or before all others, as who moves or
  // comes back to a group that is formed again. REQUIRES: it is placed.
  enum class Standing { kAsOthers, kFirstOfEquals, kFirst };
  void Unplace(JobState& job, const std::string& message, Standing standing = Standing::kAsOthers);
  // Its new values, in every state. A job in the queue takes its new place there.
  void Update(JobState& job, const v1::Job& values, const std::vector<std::string>& fields);
  // A checkpoint of so many bytes is committed, or is no more. REQUIRES: checkpoint_steps has it,
  // or has it no more.
  void StoreBytes(JobState& job, int64_t step, int64_t bytes);
  // Its checkpoint of that step, which is tried again, could not be written: told in an event, and
  // shown until one is written.
  void TellUnwritten(JobState& job, int64_t step, const std::string& why);
  void FreeBytes(JobState& job, int64_t step);
  v1::Event AddEvent(JobState& job, const std::string& reason, const std::string& message,
                     v1::Job::State from = v1::Job::STATE_UNSPECIFIED,
                     v1::Job::State to = v1::Job::STATE_UNSPECIFIED);
  // A failure that comes again is counted in the event that reported it first, and what was tried
  // in between leaves no events: a night without a share makes a few of them, not thousands.
  // REQUIRES: job.passing.
  void CountFailure(JobState& job, const std::string& reason, const std::string& message);
  // It is gone, with all that the store has of it. REQUIRES: it has ended. `job` dangles after it.
  void Delete(const JobState& job);

  // ---- the queue ----
  const JobQueue& queue() const { return queue_; }
  // The job, QUEUED and withheld until now, may be placed.
  void Offer(JobState& job) { queue_.Offer(job); }
  void Arrange(const std::vector<size_t>& order) { queue_.Arrange(order); }
  // Since this start, as ClusterView has them.
  std::map<std::string, double> LeftLately() { return left_lately_.Counts(turn_.now_us() / 1e6); }
  // As JobQueue has them.
  void Postpone(JobState& job, int64_t until_us) {
    queue_.Postpone(job, until_us);
    Touch(job);  // its record has the wait
  }
  // A worker has failed the job so many times (JobState::failed_on). REQUIRES: it is not queued.
  void HoldAgainst(JobState& job, const std::string& worker, int times);
  // What is long ago is held against nobody: workers are mended, and nobody tells us.
  void ForgiveWorkers();
  void EndPassing(JobState& job) {
    if (job.passing) Touch(job);  // its record has the wait
    queue_.EndPassing(job);
  }
  std::vector<std::string> TakeDue() { return queue_.TakeDue(); }
  void SetPostponedTimer() { queue_.SetTimer(); }
  void ChangeQuotas(absl::FunctionRef<void()> change) {
    queue_.ChangeShapes(change);
    turn_.WantSchedule();
  }

  // ---- publishing changes ----
  // The job is persisted under a new revision and announced at the end of the turn, or at once.
  void Touch(JobState& job) {
    job.record_changed = true;
    touched_.insert(job.name());
  }
  // The same where nothing but its progress (job_progress.h) and furthest_step have changed: far
  // fewer bytes are written.
  void TouchProgress(const JobState& job) { touched_.insert(job.name()); }
  void ForgetPace(JobState& job);  // nobody knows how fast it goes on
  void Publish(JobState& job);     // job_revisions.cc, and Settle
  void PublishIfTouched(JobState& job) {
    if (touched_.contains(job.name())) Publish(job);
  }
  // At the end of a turn: publishes what was touched, keeps of jobs that have ended, and on which
  // nobody works any more, the record alone (ended_jobs.cc), and drops changes of long ago.
  void Settle();

  // ---- the daemon's log (job_log.cc) ----
  // Why these wait, of each every kind of reason once until it starts. False: there is more to say
  // than a log takes in a second, and it is to be called again then.
  bool LogWaits(const std::vector<JobState*>& waiting);

  // ---- requests that it answers by itself, and what they show (job_reads.cc) ----
  v1::Job View(const JobState& job) const;
  v1::Job View(const JobEntry& entry) const;
  std::string WhyQueued(const JobState& state) const;
  // Of a live job, where nothing is foreseen of it.
  std::string WhyNoForecast(const JobState& state) const;
  // That it waits where it is, if it does, and why its newest checkpoint is not written, if it is
  // not. `state`: null where its record alone is kept.
  void ShowStalled(const JobState* state, v1::Job* job) const;
  void On(uint64_t request, const v1::GetJobRequest& content) const;
  void On(uint64_t request, const v1::ListJobsRequest& content) const;
  void On(uint64_t request, const SnapshotJobs& content) const;

  // OK where the invariants hold, else INTERNAL and which does not. To be asked between turns. Of
  // ended jobs the bytes are not read (job_invariants.cc).
  absl::Status CheckInvariants() const;

 private:
  absl::Status LoadJobs(StoredState& stored);
  static void TakeUpProgress(const std::string& bytes, JobState& job);
  void LoadMetrics(const StoredState& stored);
  // A change of what the job uses, or of its labels.
  void Recount(JobState& job, absl::FunctionRef<void()> change);
  absl::Status CheckUses() const;
  void StoreWhole(JobState& job);
  void StoreProgress(JobState& job, const v1::Job& view);
  // A change that is kept for watchers who come back.
  void StoreChange(const std::string& bytes);
  void TellDeletion(const JobState& job);
  void DropOldChanges();
  // An event where the job, which is about to be CANCELLED, has a step that no checkpoint has.
  void NoteUnsaved(JobState& job, const std::string& why);
  // Of steps that it had done beyond the one at which it is about to have SUCCEEDED.
  void DropMetricsBeyond(const JobState& job);
  absl::StatusOr<std::map<int64_t, int64_t>> Among(const SnapshotJobs& content) const;
  void LogCreated(const v1::Job& job);
  // REQUIRES: it still has the group that it leaves.
  void LogTransition(JobState& job, v1::Job::State from, const std::string& message);
  JobState* TakeUp(const std::string& name);
  void PutEndedAway();
  absl::Status CheckEntries() const;
  absl::Status CheckWhole(const std::string& name, const JobState& job) const;

  const CoreOptions& options_;
  Turn& turn_;
  RowChecks& rows_;
  const GroupTable& groups_;
  Quotas& quotas_;
  JobQueue queue_;
  planner::LeftLately left_lately_;

  // But for those in ended_. Asked for by the thousand in every scheduling turn.
  absl::flat_hash_map<std::string, std::unique_ptr<JobState>> jobs_;
  std::map<int64_t, JobEntry> by_order_;    // all
  std::map<int64_t, int64_t> by_revision_;  // the newest of each -> order; watches begin here
  std::unordered_map<std::string, int64_t> ended_;  // name -> order: the record alone is kept
  std::set<std::string> put_away_;                  // names: may be, or soon
  std::set<std::string> live_;                      // names
  std::set<std::string> finishing_;                 // names: of them, those with a finish_step
  std::set<std::string> keepers_;                   // until TakeKeepers
  std::set<std::string> failed_somewhere_;          // names: those with a failed_on, and others
  std::map<int, int64_t> jobs_by_state_;
  std::set<std::string> touched_;  // names
  int64_t revision_ = 0;
  RevisionAges ages_;
  int64_t trimmed_revision_ = 0;  // the store has no changes up to this one
  int64_t next_order_ = 1;
};

}  // namespace lorad::server
