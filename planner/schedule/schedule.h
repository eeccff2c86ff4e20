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

// Decides who trains where: one pass over the queue (QueueOrder), then the search for a better
// split (improve.h). docs/planner.md, "Scheduling", says what a job gets, in which order that is
// tried, and what the settings of SchedulePolicy change. What callers may rely on:
//
// - One decision for each queued job, in queue order; kFormGroup names several jobs. kEvict and
//   kReplace come besides, before the kWait of the job they are for; kReplace for nobody comes
//   last.
// - Memory: a group's slots fit the budget (Fits) of each of its workers.
// - Nobody starves behind equals: a job that waits and could run alone on a group's worker keeps
//   all behind it out of that group, but for some in the round in which its first jobs come
//   (overtake.cc); and one that needs several workers keeps those that will be free the soonest. As
//   nothing makes a draining group end later, it has them in the end. Against a stream of higher
//   priorities that never ends nothing helps: that is what static priorities mean.
// - Nothing thrashes: who is evicted for a higher priority cannot evict it, and who is evicted for
//   an equal one waits behind it for its minimum run time; so a place changes hands between equals
//   at most once in minimum_run_s.
// - A group takes several workers only for a job that fits none of the connected ones alone,
//   doubtful ones aside (WorkerView), or whose base model is to be on several (stages/place.h).
std::vector<Decision> Schedule(const ClusterView& view);

// The queue in the order in which jobs are placed, as indexes. First those of a group that is
// formed again, and who move to another; then by priority; of equals those first whose worker was
// drained, or who are tried alone; then by points, by the time since they were queued last, and by
// arrival.
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
