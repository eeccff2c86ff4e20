// The queue: jobs that wait to be placed, in their order and by their shape, and those that are not
// looked at for a while.
//
// Jobs of one shape fare alike (base model, rank, targets, longest row, priority, whether the job
// resumes, by which quotas it is held, which workers it avoids), so a decision looks at the first of
// each.
//
// Invariants: a job is found under its own key and shape, which do not change while it is in the
// queue; what is offered is in the queue; what is in the queue and not offered is postponed, or
// reads its rows again; who is postponed is so by its own back-off, and lives; while any is, a
// timer is set for the first.
//
// A part of JobTable, which enters and takes out; it holds pointers to that table's jobs. Threads:
// the core's one. Errors: none.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "server/core/events/options.h"
#include "server/core/events/turn.h"
#include "server/core/jobs/job_state.h"
#include "server/core/jobs/quotas.h"

namespace lorad::server {

class JobQueue {
 public:
  JobQueue(const CoreOptions& options, Turn& turn, const Quotas& quotas)
      : options_(options), turn_(turn), quotas_(quotas) {}

  void Enter(JobState& job);
  void Leave(JobState& job);
  // It may be placed (again).
  void Offer(JobState& job);
  // Changes what its place or its shape depends on. REQUIRES: it is in the queue.
  void Change(JobState& job, absl::FunctionRef<void()> change);
  // Changes what the shapes of all jobs depend on: the quotas.
  void ChangeShapes(absl::FunctionRef<void()> change);
  // It is not tried before that time; of a job that is not in the queue the time alone is kept.
  // The record says so too (WaitRecord). REQUIRES: job.passing.
  void Postpone(JobState& job, int64_t until_us);
  // The failure has passed, or the job has ended: job.passing is null after it.
  void EndPassing(JobState& job);
  // Names of those whose time has come. They may have left the queue meanwhile.
  std::vector<std::string> TakeDue();
  // For the first that is postponed.
  void SetTimer();

  bool empty() const { return queue_.empty(); }
  // They stand in this order from now on, as a decision looks at them: each once, by its number in
  // All(). Who enters later stands before the first that arrived after it, or is less important.
  void Arrange(const std::vector<size_t>& order);
  // From 1. REQUIRES: it is in the queue.
  int PlaceOf(const JobState& job) const;
  // The jobs that a decision looks at, by importance and arrival.
  std::vector<JobState*> View() const;
  // So many of its kind come before it that no decision looks at it; 0: it does, or it is not to be
  // placed now.
  size_t Beyond(const JobState& job) const { return job.viewed < views_ ? ViewOfShape() : 0; }
  // Every one, by importance and arrival.
  std::vector<JobState*> All() const;
  // 10,000 jobs do not lie in the processor's caches: who walks over them has those asked for that
  // come soon after this one: what the policy asks of them, or what is told of them.
  static void PrefetchAfter(const std::vector<JobState*>& jobs, size_t i);
  static void PrefetchToldAfter(const std::vector<JobState*>& jobs, size_t i);

  // Whether it goes before all of its priority. One that is tried alone does: others may wait for
  // what comes of it (losses.h).
  static bool LeadsEquals(const JobState& job) {
    return job.record.first_of_equals() || job.record.alone();
  }

  // OK where the invariants hold, the queue holds exactly `queued`, and who is postponed is among
  // `live`; else INTERNAL.
  absl::Status CheckInvariants(const std::set<const JobState*>& queued,
                               const std::map<std::string, const JobState*>& live) const;

 private:
  // By importance: who resumes, then by priority, then who leads its equals; then by arrival.
  using Key = std::tuple<bool, int32_t, bool, int64_t>;
  static Key KeyOf(const JobState& job);
  // Jobs do not lie in the processor's caches, but their places do: by JobState::stand.
  struct Place {
    Key key;
    int32_t stand = 0;
    JobState* job = nullptr;
  };
  std::vector<Place>::iterator Find(const Key& key);  // or where it would be
  void TakeStand(JobState& job);
  void LeaveStand(JobState& job);
  void CountPlaces() const;
  std::shared_ptr<const planner::AdapterShape> Shared(planner::AdapterShape shape);
  // Jobs of one shape and one label group are alike for a decision, or nearly.
  struct Alike {
    absl::btree_map<Key, JobState*> jobs;
    int32_t first = 0;  // the stand of the first
  };
  using Shape = absl::flat_hash_map<std::string, Alike>;  // by label group: there may be thousands
  std::string ShapeOf(const JobState& job) const;
  // Those of which a decision looks at some, so many of each.
  std::vector<const Alike*> LookedAt(const Shape& shape, size_t* of_each) const;
  bool Withhold(JobState& job);  // whether it was offered
  size_t ViewOfShape() const;    // so many of each shape a decision looks at

  const CoreOptions& options_;
  Turn& turn_;
  const Quotas& quotas_;
  std::vector<Place> queue_;  // by key: walked more often than changed
  // As they stand, and the place of each stand, where places are known: who came since has none.
  mutable std::vector<Place> order_, newcomers_;
  mutable std::vector<int> places_;
  mutable bool places_known_ = true;
  std::vector<int32_t> free_stands_;
  // Those that some job has, or had lately.
  std::map<planner::AdapterShape, std::shared_ptr<const planner::AdapterShape>> adapters_;
  // Those of the queue that may be placed now, by their shape.
  std::map<std::string, Shape> shapes_;
  mutable int64_t views_ = 0;                            // so many were asked for
  std::set<std::pair<int64_t, std::string>> postponed_;  // (until_us, job)
  int64_t timer_us_ = 0;                                 // the earliest that is set; 0 = none
};

}  // namespace lorad::server
