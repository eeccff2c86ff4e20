// Which job trains where: a pure policy. The view of the cluster in, decisions out (view.h); it
// keeps nothing (mLoRA 3.4: static priorities that preempt, then first come; as many jobs as memory
// holds).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "planner/schedule/view.h"
#include "planner/stages/place.h"

namespace lorad::planner {

// Those of a group that is formed again, and who move to another, first; then by priority; of equals
// those first whose worker was drained, or who are tried alone; then by points and arrival. One pass
// over the queue. A job
// - goes where the sum of the predicted ends of all jobs rises the least (ends.h), into an open
//   group of its base model that it fits (its sequences within the group's longest, its slot within
//   the budget (Fits), and no suspicion parts them) or onto an idle worker that it fits, where the
//   end of every job of the group is later by the time to form it (ClusterView::load_s, nothing
//   where the worker still holds the base model). Of equal places it takes a worker that holds the
//   base model, a GPU before a CPU, the larger budget, the first name. Unknown times are equal on
//   all devices and have no constant part, and unknown steps and tokens are equal, so without them
//   it takes an idle worker, and where none is left the group with the fewest tokens or jobs;
// - but goes where it was re-placed to, if it has left its group for that and still can (for what it
//   left is for the job that it made room for);
// - but takes no idle worker that a base model without a group has more need of (jobs of it, of the
//   same priority, are behind in the queue and would have no worker left) while it can join a
//   group, or take another; nor, where times are unknown, joins a group that is being formed in
//   this round and would get shorter microbatches from it while a worker like that is idle; nor, if
//   it comes back from a group that is formed again, another worker than it had, which may be kept
//   for a job of the queue that needs several, or joins, while it can go back, a group elsewhere
//   for whose worker one waits that fits none like its own: they wait for it to drain, and come
//   after all that come back. A suspect (company_max) has a group formed first, and whom only that
//   keeps out waits without holding up others; if it is to be alone, and drives out nobody (below),
//   the group that will be free the soonest drains for it. Recomputed is only what some job would
//   not fit without even alone;
// - but has a group without jobs dissolved, rather than have several idle workers one of which has
//   failed to join others more often than that group's worker;
// - but has a group without jobs dissolved, rather than join one that has some, where the sum of
//   ends rises less on its worker and nobody in the queue who could train there is of that group's
//   base model;
// - else waits for a group of its base model that is being formed or changed and that it would fit
//   alone, unless another one of that base model has no jobs: this is formed again, with room for
//   it;
// - else has a group without jobs dissolved, of several workers also where one takes no jobs;
// - else has a group of its base model formed again, if that has room for all of its jobs and this
//   one then: for longer sequences or a higher rank, with shorter microbatches, or without what
//   jobs asked for that have left;
// - else, with `evict`, has jobs evicted: of one group, as few and as unimportant ones as make room
//   (lowest priority first, then latest arrival), all of them where the group's base model is
//   another or the job is to be alone; those that fit another open group of their base model, or an
//   idle worker that is loaded before they would end, are re-placed instead, to where the sum of
//   ends rises the least, and a job that can be re-placed and was not moved within the minimum run
//   time may be of any priority; who has room beside a job ahead of its base model, for which a
//   worker is being emptied, waits for that;
// - else waits, with the reason.
// A group takes several workers only for a job that fits none of the connected ones alone, idle or
// not but for doubtful ones (WorkerView), or whose base model is to be on several: then it is formed
// on the fewest idle ones, of one numerics id, those of one host first, cut so that every stage fits
// and the slowest is as fast as can be (stages/place.h). Microbatches so short that all stages have
// work are a window's own choice (window/turns.h): the group has room for long ones.
// From then on it is a group like others: jobs of its base model join it, wait for it and have it
// formed again; it makes way when it is empty. But its jobs are not moved, nor driven out for
// another base model. A job that waits for several workers has those that will be free the soonest
// kept from all behind it (and of those the last: one that idles goes on where enough others fall
// free together): idle ones stay idle, and the groups of the others drain and are dissolved. As
// nothing makes a draining group end later, it has them in the end: nobody starves.
// Then the jobs that were placed change places where all end earlier so, and with `rebalance`
// running jobs are moved where that pays: improve.h. A job that waits and could run alone on a
// group's worker keeps everyone behind it out of that group, whatever their base models, so that
// the group drains for it (but for one that a group makes room for: it needs no other): nobody
// starves behind his equals. Against a stream of higher priorities that never ends nothing helps:
// that is what static priorities mean. Never thrash: who is evicted for a higher priority cannot
// evict it, and who is evicted for an equal one begins to wait again, behind, while the other has
// its minimum run time before it; so a place changes hands between equals at most once in
// minimum_run_s. One decision a queued job, in queue order; kFormGroup names several. kEvict and
// kReplace come besides, before the kWait of the job they are for; kReplace for nobody comes last.
std::vector<Decision> Schedule(const ClusterView& view);

// The queue in the order in which jobs are placed, as indexes.
std::vector<size_t> QueueOrder(const ClusterView& view);

// Of each label group, the places that its jobs had trained in and left, by their end, a pause or
// for others, each counted by half for every so many seconds since. Not thread-safe.
class LeftLately {
 public:
  static constexpr double kHalvedS = 600;

  void Add(const std::string& label_group, double now_s);
  // What is next to nothing is forgotten. REQUIRES: moments do not fall.
  std::map<std::string, double> Counts(double now_s);

 private:
  std::map<std::string, double> counts_;  // as of then
  double then_s_ = 0;
};

// Points of a job that has waited so long, before fair share.
double PointsOf(const SchedulePolicy& policy, int64_t waited_s);

// What a step of the job computes (ends.h).
Workload StepOf(const QueuedJob& job);

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

// What a step takes over one that computes nothing again (sizes/group.h).
double RecomputationFactor(Recomputation recomputation);

// What a step that no other overlaps takes over its stages' work: its m microbatches go through S
// stages in (m + S - 1) times what one takes on the slowest. Microbatches have at most
// `capacity_tokens`, and a window may cut them down to kMicrobatchTokens:
//   (m + S - 1) / m,  m = max(1, ceil(step_tokens / capacity), floor(step_tokens / kMicrobatchTokens))
double FillAndDrainFactor(int64_t step_tokens, int64_t capacity_tokens, size_t stages);

// The shape of a group formed on a device for one job alone: with the least recomputation with
// which it fits the budget, and with the most where it fits with none; `microbatch_tokens` as in
// ClusterView. Of the job only model, longest_sequence and adapter count.
GroupShape ShapeAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
                      int64_t microbatch_tokens);

// The stages of a group formed for one job alone on several of these workers, idle or not
// (stages/place.h), and the placement that lacks the least where there is none. `workers` by index;
// of the job model, longest_sequence, adapter, stages and step_tokens count.
std::optional<Placement> PlaceAlone(const QueuedJob& job, const std::vector<WorkerView>& workers,
                                    int64_t microbatch_tokens);
std::optional<Placement> PlaceAloneNearest(const QueuedJob& job,
                                           const std::vector<WorkerView>& workers,
                                           int64_t microbatch_tokens);

// Whether the job could run alone on such a worker; `microbatch_tokens` as in ClusterView. No,
// where its base model is to be on several.
bool FitsAlone(const QueuedJob& job, const DeviceShape& device, int64_t budget_bytes,
               int64_t microbatch_tokens);

}  // namespace lorad::planner
