// The jobs that wait in simulated time, in queue order (foresee.h). Within this room only.
#pragma once

#include <cstddef>
#include <deque>
#include <limits>
#include <vector>

#include "planner/schedule/state.h"

namespace lorad::planner {

class Line {
 public:
  static constexpr size_t kNobody = std::numeric_limits<size_t>::max();

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
  // The first for which `could_run` is true of its class.
  template <typename CouldRun>
  size_t First(const CouldRun& could_run) const {
    size_t first = kNobody;
    for (size_t job_class = 0; job_class < waiting_.size(); ++job_class) {
      const size_t job = FirstOf(job_class);
      if (job != kNobody && IsBefore(job, first) && could_run(job_class)) first = job;
    }
    return first;
  }
  // It waits no more. REQUIRES: it is the first of its class.
  void Leave(size_t job);
  // A member of a group was evicted at that moment. It is behind all of its priority that have gathered
  // points longer than it, or where nobody gathers any, by its arrival.
  size_t PutBack(const GroupState& group, const MemberState& member, double now_s);
  // That a job of the queue has waited by then, seconds.
  double WaitedBy(size_t job, double now_s) const { return now_s - since_s_[job]; }

 private:
  size_t BehindOf(const QueuedJob& job) const;

  Round& round_;
  size_t original_;                          // so many did the queue have
  std::vector<double> ranks_;                // by job
  std::vector<double> since_s_;              // likewise, when it was queued
  std::vector<std::deque<size_t>> waiting_;  // by class
  std::deque<QueuedJob> evicted_;            // which Round::queue points to
};

}  // namespace lorad::planner
