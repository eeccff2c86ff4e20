// Where a job goes: the group or the idle worker that raises the sum of all jobs' ends the least.
// Within the planner only; ends.h says how it is weighed.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "planner/schedule/state.h"

namespace lorad::planner {

// Looks over the queue behind a job, so that an idle worker that a base model needs to train at all
// is not taken by another that trains already.
class Lookahead {
 public:
  explicit Lookahead(Round& round);

  // By kind of worker (a number of Footprints): whether one idle worker of it less would leave a
  // base model that has jobs behind the one at `position` of the queue, of its priority, without a
  // worker: its next job can join no group, and fewer such base models could have idle workers of
  // their own at once (a matching, grown along augmenting paths).
  const std::vector<bool>& Robbed(size_t position);
  // Whether any job of the queue is of the group's base model and could run on its worker; on its
  // workers, of several: whether any is of its base model.
  bool Asked(const GroupState& group);
  // Whether any job of the queue needs several workers.
  bool AnyNeedsSeveral() const { return any_needs_several_; }
  // Whether any that does not come back from a group that is formed again could run alone on a
  // worker of that kind, and on none like `other`.
  bool AnyNeeds(size_t worker_kind, size_t other) const;

 private:
  bool CanJoin(const Waiter& job);
  // The next job of each base model that needs a worker, by class.
  std::vector<size_t> Unserved(size_t position);
  size_t Matched(const std::vector<size_t>& classes, const std::vector<size_t>& free);

  Round& round_;
  std::vector<std::vector<size_t>> positions_;   // in the queue, by base model
  std::vector<size_t> next_;                     // the first that is behind, likewise
  std::vector<std::vector<size_t>> classes_of_;  // of the jobs of each base model
  std::vector<size_t> waiting_;                  // of those that do not resume
  bool any_needs_several_ = false;
  // What was asked last, and the answer.
  std::vector<size_t> classes_, free_;
  std::vector<bool> robbed_;
};

struct Place {
  std::optional<size_t> group = {};       // index of Round::groups, or else
  std::optional<Placement> several = {};  // on several idle workers, or else
  size_t idle = 0;                        // of Round::idle
  bool vacates = false;   // `group` has no jobs: it is to be dissolved, for its worker
  GroupShape shape = {};  // of the group, with the job
  double raise_s = 0;     // of the sum of ends
};

// None: the job fits nowhere, or is kept from where it fits.
std::optional<Place> ChoosePlace(Round& round, Lookahead& lookahead, size_t position);

}  // namespace lorad::planner
