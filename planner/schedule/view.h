// What the scheduling policy sees and what it decides: plain values (schedule.h).
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "planner/cost/memory.h"
#include "planner/cost/time.h"
#include "planner/schedule/ends.h"

namespace lorad::planner {

// (base model, device name): what times depend on.
using DeviceKey = std::pair<std::string, std::string>;

struct WorkerView {
  std::string name;
  int64_t budget_bytes = 0;
  DeviceShape device = {};
  bool idle = false;  // in no group, ready to form one
  // What the capacity of a group formed on it is to be, at least (CapacityFor); 0: ClusterView's.
  int64_t microbatch_tokens = 0;
  std::string device_name = {};  // "NVIDIA H100"; workers of one name are of one kind, and
  double slowness = 1;           // it takes so many times as long as its kind does by `times`
  // The base model of which it still holds weights, so that a group of it forms at once; empty: none.
  std::string loaded_base_model = {};
  StageRange loaded_blocks = {};  // those; {}: all, as a group of this worker alone has them
  // The stages of one group are on workers of one numerics id and one transport, and had better be
  // on one host.
  std::string numerics_id = {};
  std::string transport = {};
  std::string host = {};
  bool nccl = false;  // StageWorker's
  // Groups of several stages that it was to be in and that were broken before a microbatch had gone
  // through one, since one had: some stage cannot reach another, or only with small messages, and
  // which of the two is to blame nobody knows.
  int32_t joins_failed = 0;
  // When it takes a job again nobody knows: it is drained, or its group says nothing, or lately
  // said nothing, for longer than what it was asked should take. No job waits for it that several
  // others would hold.
  bool doubtful = false;
  bool silent = false;  // its heartbeats stay away: it takes no jobs, and nothing is foretold of it

  // Whether a group, or a stage of one, has nothing to load on it.
  bool Holds(const std::string& base_model, const StageRange& blocks = {}) const {
    return loaded_base_model == base_model && loaded_blocks == blocks;
  }
};

// A stage of a group of several workers.
struct StageView {
  std::string worker;
  StageRange range;
  int64_t budget_bytes = 0;  // of the worker

  bool operator==(const StageView&) const = default;
};

inline constexpr double kNever = std::numeric_limits<double>::infinity();  // seconds
inline constexpr int64_t kNeverMoved = std::numeric_limits<int64_t>::max();

// The properties of a job that trains which the policy weighs.
struct RunningJob {
  int32_t priority = 0;
  int64_t arrival = 0;
  int64_t running_s = 0;  // since its first step there; 0 before it is done
  int64_t longest_sequence = 0;
  int64_t step_tokens = 0;  // of one of its steps
  std::string label_group = {};
  // Is being evicted or re-placed already, or must not be: it does its last saves, say.
  bool leaving = false;
  int32_t company_max = 0;          // as in QueuedJob,
  bool alone = false;               // likewise; it is neither evicted nor re-placed
  double step_squared_lengths = 0;  // of one of its steps; 0: attention aside
  int64_t remaining_steps = 0;      // 0: unknown, or it has evaluations alone to do
  EvaluationWork evaluations = {};
  // Is `leaving` because it ends here, but first has its last evaluation to do: until then it takes
  // part in rounds.
  bool finishes = false;
  int64_t moved_s = kNeverMoved;  // since kReplace moved it last; 0 until its first step there
  // Was re-placed and is on its way into this group: it takes room, and nothing is decided of it.
  // In the group that it comes from it is `leaving`.
  bool coming = false;
  // And has been for long, as its save takes: a group without other jobs makes way all the same.
  bool comes_late = false;
  // Is not re-placed, nor its group formed again without need: a quota would keep it from coming
  // back.
  bool stays = false;
  std::vector<std::string> avoids = {};  // as in QueuedJob
};

struct GroupView {
  std::string name;
  std::string base_model;
  std::shared_ptr<const ModelShape> model;
  GroupShape shape;
  int64_t budget_bytes = 0;  // of its worker
  bool open = false;         // takes newcomers (false while it is being cut or dissolved)
  std::vector<std::string> jobs;
  std::vector<AdapterShape> adapters;    // of the jobs, in the same order
  std::vector<RunningJob> running = {};  // likewise; empty: none of them is evicted or re-placed
  int64_t microbatch_tokens = 0;         // once it is formed again; 0: ClusterView's
  bool changes = false;  // is being formed, cut or dissolved: whom it would fit waits for that
  std::string makes_room_for = {};  // `changes`: the job for which others are evicted; or none
  std::string worker = {};          // its worker's name,
  std::string device_name = {};     // and its device's
  // Is being formed, of `shape`: with `open` its shape's newcomers join it already (kAdmit), but
  // nobody leaves it, and it is not formed again or dissolved, before it runs.
  bool forming = false;
  double ready_s = 0;    // `forming`: until it runs; 0: ClusterView::load_s
  int64_t formed_s = 0;  // since it was formed; under SchedulePolicy::minimum_run_s its shape stays
  // What it has computed lately, evaluations as if trained and optimizers' passes too (ends.h), and
  // in how long, whatever its rounds had beside that; 0 s: unknown. For forecasts, and for what is
  // left of a job that may make room.
  Workload computed = {};
  double computed_s = 0;
  std::vector<StageView> stages =
      {};  // of several workers, in their order; empty: of `worker` alone
};

// Of thousands of jobs that wait most have one of a few.
using SharedAdapter = std::shared_ptr<const AdapterShape>;
inline SharedAdapter ShareAdapter(AdapterShape shape) {
  return std::make_shared<const AdapterShape>(std::move(shape));
}

struct QueuedJob {
  std::string job;
  std::string base_model;
  std::shared_ptr<const ModelShape> model;
  int32_t priority = 0;
  int64_t arrival = 0;  // order of arrival
  int64_t longest_sequence = 0;
  SharedAdapter adapter;
  int64_t waited_s = 0;             // since it was queued last
  int64_t step_tokens = 0;          // of one of its steps; 0: unknown
  double step_squared_lengths = 0;  // likewise; 0: attention aside
  std::string label_group = {};     // jobs of one user, project, ..
  bool resumes = false;             // from a group that is formed again: it goes before all others
  bool first_of_equals = false;     // its worker was drained, or it is tried alone
  // For a suspect of ending its workers: so many suspects share its group at most, itself among
  // them (0: it is none).
  int32_t company_max = 0;
  bool alone = false;           // it shares a group with nobody
  bool asks = false;            // no job, but an adapter that is asked: nobody is evicted for it
  int64_t remaining_steps = 0;  // 0: unknown, or it has evaluations alone to do
  EvaluationWork evaluations = {};
  // Its base model is to be on so many workers; 0: on one, or where it fits none, on the fewest.
  int32_t stages = 0;
  // It has left its group for this one (kReplace): it goes there if it can, for what it left may be
  // for another by now.
  std::string to = {};
  // The worker, if it comes back from a group of one that is formed again.
  std::string trained_on = {};
  // Workers, in order, that it does not fit, whatever memory they have: each has failed it, and
  // another is to be asked.
  std::vector<std::string> avoids = {};
};

// Settings that change decisions beyond priority, arrival, memory and time; the defaults suit a
// small team.
struct SchedulePolicy {
  // Running jobs may be evicted, and re-placed for a job that waits.
  bool evict = true;
  // A job that has run for less is evicted only for a higher static priority: not for an equal one,
  // however long that has waited. A job that was moved less than this ago is not moved again, and a
  // group that was formed less than this ago is not formed again to have longer microbatches.
  int64_t minimum_run_s = 900;
  // Seconds, of RunningJob::running_s. One that has done no step since it was admitted has not had
  // its time, else jobs whose base models take longer to load than that would change places for
  // ever.
  int64_t MinimumRun() const { return std::max<int64_t>(minimum_run_s, 1); }
  // A waiting job gains so many points an hour, up to the most. Points order jobs of one static
  // priority, ties by what they have waited since they were queued last (with 0 points an hour
  // not), then by arrival; and one point lets a job take the place of one of equal priority that
  // has had its minimum run time. No points ever lift a job over a higher priority, nor let it
  // evict one.
  double points_per_hour = 1;
  double points_max = 4;
  // A job has one point less for each job of its label group that runs, or that stands before it
  // among those of its priority, and in the queue also for each that left a place (LeftLately).
  bool fair_share = false;
  // A group takes another job only if what it computes a second rises by this share of what it is
  // (SharingGain, ends.h): 0 takes as many as memory holds. A job of higher priority than some job
  // of the group always may join. Needs ClusterView::times and step_tokens.
  double least_gain = 0;
  // Running jobs are moved to where all end earlier, and groups formed again to have longer
  // microbatches, if that pays (cost/move.h). Needs ClusterView::times, step_tokens and
  // remaining_steps.
  bool rebalance = true;
  // They are moved only if the sum of the ends of both groups' jobs falls by this share at least:
  // about the time model's error, so that its noise moves nobody.
  double least_share = 0.02;
};

// The largest of the workers that are away and may come back, of those that are drained or the
// others; "": none.
struct AwayWorker {
  std::string name;
  int64_t budget_bytes = 0;
};

struct ClusterView {
  std::vector<WorkerView> workers;
  std::vector<GroupView> groups;
  std::vector<QueuedJob> queue;   // in any order
  int64_t microbatch_tokens = 0;  // 0: as suits device and memory (ShapeAlone)
  SchedulePolicy policy = {};
  // With fair_share, LeftLately::Counts(). When a job leaves its place, the next one of its label
  // group would else stand as if that had had nothing, before who waits for just that place.
  std::map<std::string, double> left_lately = {};
  // Times of microbatches, forward and backward together. Where those of a device are unknown, the
  // mean of the base model's on other devices is taken, and where none is known all devices are
  // equal.
  std::map<DeviceKey, TimeCoefficients> times = {};
  // Predicted seconds until a group that is formed on such a device runs; unknown: 0, and not
  // weighed where no times of the base model are known.
  std::map<DeviceKey, double> load_s = {};
  // TimeModel::EvaluatedShare; a base model's is the mean over its devices, unknown:
  // kEvaluatedShare.
  std::map<DeviceKey, double> evaluated_shares = {};
  double move_s = 2;  // that moving a job takes of its time: a checkpoint, and loading its slot
  AwayWorker away = {}, drained_away = {};
};

struct Decision {
  enum class Kind {
    kAdmit,      // job joins a group: at its next window border, or when it has been formed
    kFormGroup,  // a new group on an idle worker, for the jobs
    kReform,     // an open group is cut, saved and formed again with room for the job: for longer
                 // sequences, a higher rank, or with shorter microbatches; or, for no job, with
                 // longer microbatches or less recomputation, as those that it has allow by now
    kDissolve,   // an empty group makes way
    kEvict,      // the jobs leave the group for the one named in `why_job`, and are queued again
    kReplace,    // the job leaves the group and goes on in the group `to`, or where that is empty
                 // in one that this round forms on `worker`: for the one named in `why_job`, or
                 // where that is empty because all end earlier
    kWait,
  };
  Kind kind = Kind::kWait;
  std::vector<std::string> jobs;  // kDissolve: the one it is for; kReform: likewise, or none
  std::string group;              // kAdmit, kReform, kDissolve, kEvict, kReplace
  std::string to;                 // kReplace
  std::string why_job;            // kEvict, kReplace: the job that is to have the room
  // kFormGroup, kReplace without `to`: the group that is formed on an idle worker. Several
  // decisions of one round may name the worker; they mean one group, of one shape, and if
  // kFormGroup is among them it is the first.
  std::string worker;
  std::string base_model;
  GroupShape shape;  // and kReform
  // kFormGroup of a group of several workers: all of them in their order, `worker` first. They are
  // idle, of one numerics id and transport, and each has memory for its stage.
  std::vector<StageView> stages;
  std::string why;  // kWait, kReplace, kReform for no job: for the user who asks
  int place = 0;    // in the queue, from 1, of a job that is not admitted yet
};

// "admit", "form", "reform", "dissolve", "evict", "replace", "wait".
const char* ToText(Decision::Kind kind);
std::string ToText(const Decision& decision);

}  // namespace lorad::planner
