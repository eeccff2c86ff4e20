// The jobs that wait in simulated time, in queue order (foresee.h). Within this room only.
#pragma once

#include <cstddef>
#include <deque>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "planner/schedule/state.h"

namespace lorad::planner {

class Line {
 public:
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();
  static constexpr size_t kAnyBase = std::numeric_limits<size_t>::max();

  // Those of the round's queue, which outlives this. About so many are put back.
  Line(Round& round, size_t evicted_max);

  // Jobs are indexes of Round::queue, which PutBack() makes longer.
  bool IsBefore(size_t a, size_t b) const {
    if (a == kNobody || b == kNobody) return a != kNobody && a != b;
    return ranks_[a] < ranks_[b];
  }
  size_t classes() const { return waiting_.size(); }
  // The first of that class; kNobody: none waits.
  size_t FirstOf(size_t job_class) const {
    return waiting_[job_class].empty() ? kNobody : waiting_[job_class].front();
  }
  // The first that could run alone on such a worker, of that base model, or of any.
  size_t FirstOn(size_t worker_kind, size_t base = kAnyBase);
  // The first that needs several workers.
  size_t FirstInNeed() const;
  // It waits no more. REQUIRES: it is the first of its class.
  void Leave(size_t job);
  // A member of a group was evicted at that moment. It is behind all of its priority that have
  // gathered points longer than it, or where nobody gathers any, by its arrival.
  size_t PutBack(const GroupState& group, const MemberState& member, double now_s);
  // That a job of the queue has waited by then, seconds.
  double WaitedBy(size_t job, double now_s) const { return now_s - since_s_[job]; }

 private:
  // The first of each class of a base model, or any, that such a worker holds, by rank.
  using Hold = std::pair<size_t, size_t>;  // a kind of worker, and a base model
  struct Fronts {
    std::vector<bool> holds;  // by class
    std::set<std::pair<double, size_t>> first;
  };

  size_t BehindOf(const QueuedJob& job) const;
  void ChangeFront(size_t job_class, size_t before);
  void AddTo(Fronts& fronts, const Hold& hold, size_t job_class);

  Round& round_;
  size_t original_;                          // so many did the queue have
  std::vector<double> ranks_;                // by job
  std::vector<double> since_s_;              // likewise, when it was queued
  std::vector<std::deque<size_t>> waiting_;  // by class
  std::deque<QueuedJob> evicted_;            // which Round::queue points to
  std::map<Hold, Fronts> fronts_;            // of those that were asked for
};

}  // namespace lorad::planner
