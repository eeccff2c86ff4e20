// When the jobs that wait will start, and when all will end, by the time model (ends.h): the policy
// run ahead on predicted ends. Pure.
//
// It follows the rules of Schedule() that decide most of it, and is a hundred times as fast as
// asking Schedule() at every predicted end: 10,000 jobs that wait for 64 workers take milliseconds.
// - Groups train in rounds, each of which takes r(S, Q, W) ms (ends.h), and their jobs end in them.
//   Where it is known how long a group took lately (GroupView::computed_s), its rounds last as many
//   times as long as those have: what a round has beside its microbatches no time model knows.
//   Both have evaluations in them as if trained (ends.h), so these are counted once.
// - Where a job ends, and on every idle worker now, the first of the queue that could run there
//   alone comes next: it joins if the group has room for it, else the group takes nobody until its
//   last job has ended, and is formed for that one then, which takes ClusterView::load_s. Jobs of
//   its base model that may overtake others come with that one (schedule/overtake.cc).
// - Where jobs need several workers, those that will be free the soonest are kept for the first of
//   each base model, unless a group of it is there that could take it; they are put together once
//   all are free. Workers that are together without a job are parted for whoever comes next.
// - Where the first that could run on a group's worker finds no room, jobs are evicted for it, or
//   re-placed (onto a worker without jobs, or into the group with the fewest), as Schedule()
//   chooses them (state.h, ChooseEviction): at once for a higher static priority or where a worker
//   without jobs is there, for an equal one as soon as it has the points and they their minimum run
//   time. Who is evicted is queued again with what it has left to do, behind those of its priority
//   that have gathered points for longer. Once kLeaversMax jobs have left for others, places drain.
// - Nobody arrives or moves because all end earlier so, and no microbatch grows back. What is under
//   way with a group is over at once. A job that leaves its group is gone at once; where it goes on
//   is not foreseen. One that finishes is there until it has evaluated.
// Jobs whose steps or tokens are unknown count as in Schedule() (kUnknownSteps, kUnknownTokens).
#pragma once

#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "planner/schedule/view.h"

namespace lorad::planner {

inline constexpr size_t kLeaversMax = 100;

// Seconds from the view's moment.
struct Foreseen {
  double start_s = 0;  // the first; 0 where it trains already
  double end_s = 0;

  bool operator==(const Foreseen&) const = default;
};

// With an end of kNever: of such a job nothing is foreseen.
struct Foresight {
  std::vector<Foreseen> waiting;  // as the view's queue has them
  absl::flat_hash_map<std::string, Foreseen> running;

  // nullptr: nothing is. `view` is that which was asked about.
  const Foreseen* Find(const ClusterView& view, const std::string& job) const;
};

// Those that train and stay, or finish, and those that wait and fit some worker of the view alone,
// or one of its groups, or several of its workers. O((queued + running) (workers + classes of
// jobs)), and a placement (stages/place.h) each time that several workers are put together.
Foresight Foresee(const ClusterView& view);

}  // namespace lorad::planner
