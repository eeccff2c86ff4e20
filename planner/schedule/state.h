// The state that the scheduler's parts and foresight/ share: groups as they will stand once the
// decisions so far are carried out, and the jobs that wait. Within the planner only;
// docs/planner.md, "Scheduling", says what it is for.
// Everything borrows from the view that is being decided on.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "planner/schedule/ends.h"
#include "planner/schedule/footprints.h"
#include "planner/schedule/schedule.h"
#include "planner/stages/place.h"

namespace lorad::planner {

// A job of the queue.
struct Waiter {
  const QueuedJob* job = nullptr;
  size_t job_class = 0;  // in Footprints
  JobWork work;
  // The placement that it needs, over all workers, idle or not, that are not doubtful (over all
  // where these have no room): it fits none of them alone, or its base model is to be on several.
  // Null: it needs one worker, or fits nowhere.
  const Placement* needs = nullptr;
};

// How fast a base model trains on a worker.
struct Pace {
  TimeCoefficients times{.token_ms = 1};
  double load_s = 0;
  bool known = false;   // the times are those of its device,
  double slowness = 1;  // so many times as long: the worker's, and in `times` already
};

class Paces {
 public:
  explicit Paces(const ClusterView& view);
  // On a worker with that device that is as slow as that.
  Pace Of(const std::string& base_model, const std::string& device_name, double slowness);
  // WorkerView's of that name; 1 where there is none.
  double SlownessOf(std::string_view worker) const;
  double EvaluatedShare(const std::string& base_model) const;

 private:
  const Pace& OfDevice(const std::string& base_model, const std::string& device_name);

  const ClusterView& view_;
  std::map<std::string, TimeCoefficients> means_;   // of a base model over its devices
  std::map<std::string, double> evaluated_shares_;  // likewise
  std::map<DeviceKey, Pace> paces_;
  std::map<std::string_view, double> slownesses_;  // of workers, where it is not 1
};

// What a job with unknown numbers is taken for.
inline constexpr int64_t kUnknownSteps = 1000;
inline constexpr int64_t kUnknownTokens = 1024;
// Where a backward pass takes as long as a forward one, as with frozen weights.
inline constexpr double kEvaluatedShare = 0.5;

struct MemberState {
  std::string job;
  size_t job_class = 0;
  StageBytes slot_bytes;
  const RunningJob* running = nullptr;  // nullptr: nothing is known
  JobWork work;
  bool trains = true;  // it does not leave
  bool works = true;   // it trains, or finishes: it takes part in rounds
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
  int64_t budget_bytes = 0;          // of the worker; of several: of the first
  std::vector<StageView> stages;     // of several workers; empty: of one
  std::vector<size_t> stage_kinds;   // of several: each by itself, in Footprints
  const Waiter* kept_for = nullptr;  // KeepWorkers(), KeepOne()
  bool open = false;
  bool changes = false;
  std::string makes_room_for;
  bool forming = false;
  bool rests = false;    // its worker, or that of a stage, takes no jobs
  bool touched = false;  // a running job comes into it by a decision of this round
  int64_t formed_s = 0;
  Workload computed;      // GroupView's,
  double computed_s = 0;  // likewise
  StageBytes bytes;       // without slots, of `shape`
  StageBytes slot_bytes;
  size_t jobs = 0;
  // So many of the jobs that wait are known not to be ahead of others here, and so many not to be
  // ahead of others of its base model; and never will be.
  mutable size_t not_ahead = 0, not_ahead_of_own = 0;
  // Seconds of training until its last job ends, as it was before any overtook others.
  mutable std::optional<double> due_s;
  int32_t lowest_priority = std::numeric_limits<int32_t>::max();  // of jobs that are known
  std::vector<MemberState> members;                               // those of the view,
  std::vector<const Waiter*> joined;  // and those of this round, in queue order
  // QueuedJob::company_max of its jobs: how many are suspects, and the least of theirs.
  int32_t suspects = 0;
  int32_t company_max = std::numeric_limits<int32_t>::max();
  bool alone = false;  // the one that it has is
  // Time: of the jobs that work in it, from `delay_s` on.
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

// A worker that may have a group formed on it. It is `taken` once it has one, or is kept for a job
// that waits for several.
struct IdleWorker {
  const WorkerView* worker = nullptr;
  size_t worker_kind = 0;
  bool taken = false;
  const Waiter* kept_for = nullptr;
};

// A group of the view; `microbatch_tokens` as in ClusterView.
GroupState StateOf(const GroupView& group, const ClusterView& view, Footprints& sizes,
                   Paces& paces);
// One that is formed on an idle worker, without jobs yet.
GroupState StateOf(const IdleWorker& idle, const std::string& base_model, const ModelShape& model,
                   Footprints& sizes, Paces& paces);

// One that is formed on several idle workers, without jobs yet.
GroupState StateOf(const std::vector<IdleWorker>& idle, const Placement& placement,
                   const std::string& base_model, const ModelShape& model, Footprints& sizes,
                   Paces& paces);

// All its times are known, and all its jobs' steps.
bool IsKnown(const GroupState& group);

// So many times as long as by its times its rounds have lasted lately; 0: unknown.
double MeasuredSlowness(const GroupState& group);

// Whether suspicion lets the job into the group.
bool Mix(const GroupState& group, const QueuedJob& job);

// A job comes into a group that has or gets that shape.
void Add(GroupState& group, const Waiter& job, const GroupShape& shape, Footprints& sizes);

// What one Schedule() knows and has decided so far. Its parts are choose.h (where a job goes),
// several.cc, evict.cc, improve.h and
// regrow.h.
struct Round {
  explicit Round(const ClusterView& view);
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // A job that waits ahead and could run on the group's worker alone: the group is to drain for it.
  const Waiter* Ahead(const GroupState& group) { return Ahead(group, false, group.not_ahead); }
  // Whether one waits ahead whom the job, with which the group gets that shape, may not overtake
  // (overtake.cc).
  bool KeepsOut(const GroupState& group, const Waiter& job, const GroupShape& shape);
  // SharingGain is least_gain or more, or someone of less priority is to be slowed down.
  bool Helps(const GroupState& group, const GroupShape& shape, const QueuedJob& job,
             const JobWork& work) const;
  size_t KindOf(const WorkerView& worker);
  // The kind of worker that the job could have alone if the group were not there, or had no other
  // jobs: the group's, or of several that of the first stage whose worker it fits. Null where there
  // is none. A group of which workers are kept for the job counts as its own.
  std::optional<size_t> KindAlone(const Waiter& job, const GroupState& group);
  bool FitsAlone(const Waiter& job, const GroupState& group) {
    return KindAlone(job, group).has_value();
  }

  const ClusterView& view;
  Footprints sizes;
  Paces paces;
  std::set<size_t> keepers;  // base models for whose jobs workers are kept
  // By class of jobs, those that need several workers.
  std::map<size_t, std::optional<Placement>> needs;
  std::vector<Waiter> queue;       // in queue order
  std::vector<GroupState> groups;  // of the view, and behind them those that this round forms
  std::vector<IdleWorker> idle;
  std::vector<const Waiter*> waiting;  // so far
  std::set<const QueuedJob*> settled;  // of those, who have a group that makes room for them

 private:
  // `own`: of the group's base model. It is not among the first `before` that wait.
  const Waiter* Ahead(const GroupState& group, bool own, size_t& before);
};

// Of the base model of `like`, one without jobs on each idle worker that is not taken, by the
// indexes of those.
std::vector<std::pair<size_t, GroupState>> OnIdle(Round& round, const GroupState& like);

// ---- jobs that overtake others (overtake.cc) ----

// Whether the job may come into the group, which gets that shape with it, although jobs of other
// base models wait ahead, `ahead` the first of them: these are no more important, nor go before
// their equals, and by the time model the group's last job ends at most a tenth later for all who
// overtake, and what it takes to form the group and to move a job. So much longer lasts any turn
// before one who is overtaken, and no more.
// REQUIRES: the group's first jobs come in this moment, and overtake nobody.
bool MayOvertake(const GroupState& group, const Waiter& job, const GroupShape& shape,
                 const Waiter& ahead, double move_s);

// ---- jobs that need several workers (several.cc) ----

// The less of two settings of ClusterView::microbatch_tokens, where 0 says nothing.
int64_t LeastTokens(int64_t a, int64_t b);
// The placement of a job of that class over all workers of the view, if it needs several: once for
// each class.
const Placement* NeedsOf(Round& round, size_t job_class);
// The placement of the job on idle workers that are not taken, by index of Round::idle; of kinds
// with `without`, by kind, it gets none.
std::optional<Placement> PlaceOnIdle(Round& round, const Waiter& job,
                                     const std::vector<bool>& without);
// The workers that a job that waits is to have are kept from the jobs behind it: those that will be
// free the soonest and hold it. Idle ones are taken, and the groups of the others drain. Nothing
// where it will come into a group that there is, or one ahead of the same base model has kept some.
void KeepWorkers(Round& round, const Waiter& job);
// Of all groups whose worker holds it the one that will be free the soonest drains for a job that
// is tried alone: that may take long, and nobody else is to be held up meanwhile.
void KeepOne(Round& round, const Waiter& job);

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
// Into which groups jobs are re-placed. Sums of ends cost what these have in jobs, for each of
// those that leave.
enum class Targets { kLeastEnds, kFewestJobs };
// The least harmful of the groups with `allowed`: the highest priority that is evicted as low as
// possible, then the fewest jobs evicted, then the fewest re-placed, then the first group. Jobs are
// re-placed into those of which `accepts` is true (asked of such as have room alone): not into one
// that drains for another job, or is kept for one. Behind those that `allowed` has may come groups
// that jobs can be re-placed into alone: such as would be formed on idle workers, which all accept.
std::optional<Eviction> ChooseEviction(const ClusterView& view, Footprints& sizes,
                                       const std::vector<const GroupState*>& groups,
                                       const std::vector<bool>& allowed,
                                       absl::FunctionRef<bool(size_t)> accepts, const Waiter& job,
                                       double points, Targets targets);

}  // namespace lorad::planner
