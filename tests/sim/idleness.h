// Looks every second whether workers idle, or only answer, beside a queued job that they have room
// for, one of them or several together; several only for what fits no connected worker alone (ADR
// 0025). For a moment that may be: a checkpoint is being written, the news is on its way, or a
// group that answers is being cut. For longer it may not, unless they are kept for one that needs
// more of them. And whether they idle beside jobs that share another worker of their kind and would
// end much earlier if one of them were theirs: nothing may keep these there but a minimum run. Who
// was sent elsewhere leaves when the windows that were begun have ended, and has a bound of its
// own.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "planner/schedule/view.h"
#include "tests/sim/site.h"
#include "tests/sim/turns.h"

namespace lorad::sim {

class Idleness {
 public:
  explicit Idleness(Site& site, const SiteOptions& options);
  // From here on, as long as the site goes on; it outlives that.
  void Begin() { Look(); }

 private:
  void Look();
  struct Seen {
    v1::ClusterStatus cluster;
    v1::ListWorkersResponse workers;
    v1::ListJobsResponse jobs;
    int answers = 0;
    bool whole = true;
  };
  using Workers = std::vector<const v1::Worker*>;
  using Since = std::map<std::string, int64_t>;
  void Compare(const Seen& seen);
  void Compare(const Workers& free, const v1::ListJobsResponse& jobs, int64_t us_max,
               Since* since_before_us);
  // Those that have not left yet, by job.
  using Moves = std::map<std::string, Site::Move>;
  // Of the workers of a group, the jobs that stay would end much earlier beside that free one, to
  // which none was sent.
  bool IsCrowded(const v1::Group& group, const v1::Worker& free, const Seen& seen,
                 const Moves& moves) const;
  Moves PendingMoves(const v1::ClusterStatus& cluster);
  void CompareShared(const Workers& free, const Seen& seen);
  void Forget() {
    since_us_.clear();
    since_answering_us_.clear();
    since_shared_us_.clear();
    since_sent_us_.clear();
  }
  bool HaveRoom(const Workers& idle, const v1::Job& job);
  bool FindRoom(const Workers& idle, const v1::Job& job) const;
  planner::WorkerView ViewOf(const v1::Worker& worker, bool idle) const;

  Site& site_;
  std::map<std::string, Machine> machines_;
  Workers busy_;  // in the answer that is looked at
  // Of the names and memory of workers, a job's base model, rank and longest row.
  std::map<std::tuple<std::string, std::string, int32_t, int64_t>, bool> rooms_;
  int64_t looked_us_ = 0;
  Since since_us_;            // jobs that wait beside workers in no group,
  Since since_answering_us_;  // or beside such as idle in a group or only answer
  Since since_shared_us_;     // groups whose jobs share a worker beside either,
  Since since_sent_us_;       // and meanwhile jobs that were sent elsewhere
  Turns turns_;
  const int64_t minimum_run_us_;
};

}  // namespace lorad::sim
