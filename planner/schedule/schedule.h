// Which job trains where: a pure policy. The view of the cluster in, decisions out; it keeps
// nothing (mLoRA 3.4: static priorities that preempt, then first come; as many jobs as memory
// holds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "planner/cost/memory.h"
#include "planner/cost/time.h"

namespace lorad::planner {

struct WorkerView {
  std::string name;
  int64_t budget_bytes = 0;
  DeviceShape device = {};
  bool idle = false;              // in no group, ready to form one
  int64_t microbatch_tokens = 0;  // of a group formed on it; 0: ClusterView's
};

// The properties of a job that trains which the policy weighs.
struct RunningJob {
  int32_t priority = 0;
  int64_t arrival = 0;
  int64_t running_s = 0;  // since it was admitted last
  int64_t longest_sequence = 0;
  int64_t step_tokens = 0;  // of one of its steps
  std::string label_group = {};
  bool leaving = false;     // is being evicted or re-placed already
  int32_t company_max = 0;  // as in QueuedJob,
  bool alone = false;       // likewise
};

struct GroupView {
  std::string name;
  std::string base_model;
  ModelShape model;
  GroupShape shape;
  int64_t budget_bytes = 0;  // of its worker
  bool open = false;         // takes newcomers (false while it is being formed, cut or dissolved)
  std::vector<std::string> jobs;
  std::vector<AdapterShape> adapters;    // of the jobs, in the same order
  std::vector<RunningJob> running = {};  // likewise; empty: none of them is evicted or re-placed
  int64_t microbatch_tokens = 0;         // once it is formed again; 0: ClusterView's
  bool changes = false;  // is being formed, cut or dissolved: whom it would fit waits for that
};

struct QueuedJob {
  std::string job;
  std::string base_model;
  ModelShape model;
  int32_t priority = 0;
  int64_t arrival = 0;  // order of arrival
  int64_t longest_sequence = 0;
  AdapterShape adapter;
  int64_t waited_s = 0;          // since it was queued last
  int64_t step_tokens = 0;       // of one of its steps
  std::string label_group = {};  // jobs of one user, project, ..
  bool resumes = false;          // from a group that is formed again: it goes before all others
  // For a suspect of ending its workers: so many suspects share its group at most, itself among
  // them (0: it is none).
  int32_t company_max = 0;
  bool alone = false;  // it shares a group with nobody
};

// Settings that change decisions beyond priority, arrival and memory. The defaults change nothing.
struct SchedulePolicy {
  // Running jobs may be evicted and re-placed.
  bool evict = false;
  // A job that has run for less is evicted and re-placed only for a higher static priority: not for
  // an equal one, however long that has waited.
  int64_t minimum_run_s = 900;
  // A waiting job gains so many points an hour, up to the most. Points order jobs of one static
  // priority, ties by arrival; and one point lets a job take the place of one of equal priority
  // that has had its minimum run time. No points ever lift a job over a higher priority, nor let it
  // evict one.
  double points_per_hour = 1;
  double points_max = 4;
  // A job has one point less for each job of its label group that runs, or that stands before it
  // among those of its priority.
  bool fair_share = false;
  // A group takes another job only if its tokens a second rise by this share of what they are: 0
  // takes as many as memory holds. A job of higher priority than some job of the group always may
  // join. Needs ClusterView::times and step_tokens.
  double least_gain = 0;
};

struct ClusterView {
  std::vector<WorkerView> workers;
  std::vector<GroupView> groups;
  std::vector<QueuedJob> queue;   // in any order
  int64_t microbatch_tokens = 0;  // 0: as suits device and memory (ShapeAlone)
  SchedulePolicy policy = {};
  // Times of base models, forward and backward together.
  std::map<std::string, TimeCoefficients> times = {};
};

struct Decision {
  enum class Kind {
    kAdmit,      // job joins a running group at its next window border
    kFormGroup,  // a new group on an idle worker, for the jobs
    kReform,     // an open group is cut, saved and formed again with room for the job: for longer
                 // sequences, a higher rank, or with shorter microbatches
    kDissolve,   // an empty group makes room for another base model
    kEvict,      // the jobs leave the group for the one named in `why_job`, and are queued again
    kReplace,    // likewise, but they go on in the group `to`
    kWait,
  };
  Kind kind = Kind::kWait;
  std::vector<std::string> jobs;  // kDissolve: the one it is for
  std::string group;              // kAdmit, kReform, kDissolve, kEvict, kReplace
  std::string to;                 // kReplace
  std::string why_job;            // kEvict, kReplace: the job that is to have the room
  std::string worker;             // kFormGroup
  std::string base_model;         // kFormGroup
  GroupShape shape;               // kFormGroup, kReform
  std::string why;                // kWait: for the user who asks
  int place = 0;                  // in the queue, from 1, of a job that is not admitted yet
};

// Those of a group that is formed again first, then by priority, points and arrival; one pass over
// the queue. A job
// - joins the first open group of its base model that it fits: its sequences within the group's
//   longest, its slot within the budget (Fits), and no suspicion parts them (company_max; a suspect
//   has a group formed first, and whom only that keeps out waits without holding up others);
// - else has a group formed for it on an idle worker, on a GPU before a CPU and then on the one
//   with the largest budget (jobs behind it may join that one too, and make it longer, or its
//   microbatches shorter where no worker is left); recomputed is only what some job would not fit
//   without even alone;
// - else waits for a group of its base model that is being formed or changed and that it would fit
//   alone;
// - else has a group without jobs dissolved;
// - else has a group of its base model formed again, if that has room for all of its jobs and this
//   one then: for longer sequences or a higher rank, with shorter microbatches, or without what
//   jobs asked for that have left;
// - else, with `evict`, has jobs evicted: of one group, as few and as unimportant ones as make room
//   (lowest priority first, then latest arrival), all of them where the group's base model is
//   another; those that fit another open group of their base model are re-placed instead, and a
//   job that can be re-placed and had its minimum run time may be of any priority;
// - else waits, with the reason.
// A job that waits and could run alone on a group's worker keeps everyone behind it out of that
// group, whatever their base models, so that the group drains for it (but for one that a group
// makes room for: it needs no other): nobody starves behind his equals. Against a stream of higher
// priorities that never ends nothing helps: that is what static priorities mean. Never thrash: who
// is evicted for a higher priority cannot evict it, and who is evicted for an equal one begins to
// wait again, behind, while the other has its minimum run time before it; so a place changes hands
// between equals at most once in minimum_run_s. One decision a queued job, in queue order;
// kFormGroup names several. kEvict and kReplace come besides, before the kWait of the job they are
// for.
std::vector<Decision> Schedule(const ClusterView& view);

// The queue in the order in which jobs are placed, as indexes.
std::vector<size_t> QueueOrder(const ClusterView& view);

// Points of a job that has waited so long, before fair share.
double PointsOf(const SchedulePolicy& policy, int64_t waited_s);

// Tokens a millisecond of a group whose jobs' steps have `step_tokens` together. Steps are packed
// into microbatches of `capacity` tokens across batches, so there are step_tokens / capacity of
// them in the mean, and one at least:
//   step_tokens / (a max(1, step_tokens / capacity) + b step_tokens)
// (the squared lengths, which do not depend on company, left out). It rises until the steps fill a
// microbatch, and not beyond.
double GroupThroughput(const TimeCoefficients& times, int64_t step_tokens, int64_t capacity);

// The capacity of a group: at least `microbatch_tokens`, and room for the longest sequence.
int64_t CapacityFor(int64_t microbatch_tokens, int64_t longest_sequence);

// Tokens of a microbatch where nobody says how many. A CPU multiplies 1,024 as fast as more. A GPU
// wants more, for every microbatch reads all weights, and launches end with idle multiprocessors:
// the most of 8,192, half of that, .. with which nothing need be computed again and so many of the
// job's adapters fit. Company is worth more than long microbatches, so a group that has no room for
// a job is formed again with shorter ones, down to kMicrobatchTokens.
inline constexpr int64_t kMicrobatchTokens = 1024;
inline constexpr int64_t kMicrobatchTokensOfGpu = 8192;
inline constexpr int64_t kAdaptersOfGpu = 2;  // so that the next one need not wait for that

// The shape of a group formed on a device for one job alone: with the least recomputation with
// which it fits the budget, and with the most where it fits with none; `microbatch_tokens` as in
// ClusterView. Of the job only model, longest_sequence and adapter count.
GroupShape ShapeAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                      int64_t microbatch_tokens);

// "admit", "form", "reform", "dissolve", "evict", "replace", "wait".
const char* ToText(Decision::Kind kind);
std::string ToText(const Decision& decision);

}  // namespace lorad::planner
