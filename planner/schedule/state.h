// The state that the scheduler's parts share: groups as they will stand once the decisions so far
// are carried out, and the jobs that wait. Within the planner only; schedule.h says what it is for.
// Everything borrows from the view that is being decided on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "planner/schedule/ends.h"
#include "planner/schedule/footprints.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {

// A job of the queue.
struct Waiter {
  const QueuedJob* job = nullptr;
  size_t job_class = 0;  // in Footprints
  JobWork work;
};

// How fast a base model trains on a device.
struct Pace {
  TimeCoefficients times{.constant_ms = 0, .token_ms = 1, .squared_ms = 0};
  double load_s = 0;
  bool known = false;  // the times are the device's own
};

class Paces {
 public:
  explicit Paces(const ClusterView& view);
  const Pace& Of(const std::string& base_model, const std::string& device_name);

 private:
  const ClusterView& view_;
  std::map<std::string, TimeCoefficients> means_;  // of a base model over its devices
  std::map<DeviceKey, Pace> paces_;
};

// What a job with unknown numbers is taken for.
inline constexpr int64_t kUnknownSteps = 1000;
inline constexpr int64_t kUnknownTokens = 1024;
JobWork WorkOf(int64_t step_tokens, int64_t remaining_steps);

struct MemberState {
  std::string job;
  size_t job_class = 0;
  int64_t slot_bytes = 0;
  const RunningJob* running = nullptr;  // nullptr: nothing is known
  JobWork work;
  bool trains = true;  // it does not leave
};

struct GroupState {
  std::string name;  // empty: formed by a decision of this round
  std::string base_model;
  std::string worker;  // of a group that is formed by a decision of this round, and where known
  std::string device_name;  // likewise
  const ModelShape* model = nullptr;
  size_t base = 0;         // in Footprints,
  size_t worker_kind = 0;  // likewise
  GroupShape shape;
  int64_t budget_bytes = 0;
  bool open = false;
  bool changes = false;
  bool forming = false;
  bool touched = false;  // a running job comes into it by a decision of this round
  int64_t formed_s = 0;
  int64_t bytes = 0;  // without slots, of `shape`
  int64_t slot_bytes = 0;
  size_t jobs = 0;
  // So many of the jobs that wait are known not to be ahead of others here, and never will be.
  mutable size_t not_ahead = 0;
  int32_t lowest_priority = std::numeric_limits<int32_t>::max();  // of jobs that are known
  std::vector<MemberState> members;                               // those of the view,
  std::vector<const Waiter*> joined;  // and those of this round, in queue order
  // QueuedJob::company_max of its jobs: how many are suspects, and the least of theirs.
  int32_t suspects = 0;
  int32_t company_max = std::numeric_limits<int32_t>::max();
  bool alone = false;  // the one that it has is
  // Time: of the jobs that train in it, from `delay_s` on.
  Pace pace;
  double delay_s = 0;
  Crew crew;

  void Suspect(int32_t of_job, bool is_alone) {
    alone = alone || is_alone;
    if (of_job == 0) return;
    ++suspects;
    company_max = std::min(company_max, of_job);
  }

  bool full() const { return jobs >= static_cast<size_t>(shape.slots_max); }
  bool fresh() const { return name.empty(); }
  // Formed, and nothing is under way with it: jobs may leave it, and it may be formed again.
  bool settled() const { return open && !forming && !fresh(); }

  // The sum of its jobs' ends in seconds, also with another job and in another shape.
  double SumOfEnds() const;
  double SumOfEndsWith(const JobWork& comes, int64_t capacity_tokens) const;
};

// A worker that may have a group formed on it.
struct IdleWorker {
  const WorkerView* worker = nullptr;
  size_t worker_kind = 0;
  bool taken = false;
};

// A group of the view; `microbatch_tokens` as in ClusterView.
GroupState StateOf(const GroupView& group, const ClusterView& view, Footprints& sizes,
                   Paces& paces);
// One that is formed on an idle worker, without jobs yet.
GroupState StateOf(const IdleWorker& idle, const std::string& base_model, const ModelShape& model,
                   Footprints& sizes, Paces& paces);

// All its times are known, and all its jobs' steps.
bool IsKnown(const GroupState& group);

// Whether suspicion lets the job into the group.
bool Mix(const GroupState& group, const QueuedJob& job);

// A job comes into a group that has or gets that shape.
void Add(GroupState& group, const Waiter& job, const GroupShape& shape, Footprints& sizes);

// What one Schedule() knows and has decided so far. Its parts are choose.h (where a job goes),
// evict.cc, improve.h and regrow.h.
struct Round {
  explicit Round(const ClusterView& view);
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // A job that waits ahead and could run on the group's worker alone: the group is to drain for it.
  const Waiter* Ahead(const GroupState& group);
  // Tokens a second rise by least_gain, or someone of less priority is to be slowed down.
  bool Helps(const GroupState& group, const GroupShape& shape, const QueuedJob& job,
             const JobWork& work) const;
  bool FitsAlone(const Waiter& job, const GroupState& group) {
    return sizes.FitsAlone(job.job_class, group.worker_kind);
  }

  const ClusterView& view;
  Footprints sizes;
  Paces paces;
  std::vector<Waiter> queue;       // in queue order
  std::vector<GroupState> groups;  // of the view, and behind them those that this round forms
  std::vector<IdleWorker> idle;
  std::vector<const Waiter*> waiting;  // so far
  std::set<const QueuedJob*> settled;  // of those, who have a group that makes room for them
};

// The jobs that leave `group` so that the job can join it, have it formed again or have it
// dissolved.
struct Eviction {
  size_t group = 0;  // index
  struct Leaver {
    size_t member = 0;
    std::optional<size_t> to;  // re-placed into this group
  };
  std::vector<Leaver> leavers;  // may be empty: those who are leaving already will do
};
// The least harmful of the groups with `allowed`: the highest priority that is evicted as low as
// possible, then the fewest jobs evicted, then the fewest re-placed, then the first group.
std::optional<Eviction> ChooseEviction(const ClusterView& view, Footprints& sizes,
                                       const std::vector<GroupState>& groups,
                                       const std::vector<bool>& allowed, const Waiter& job,
                                       double points);

}  // namespace lorad::planner
