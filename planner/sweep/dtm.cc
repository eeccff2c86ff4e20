// PLoRA's rule: DTM and the job planner (PLoRA 6.2, algorithms 1 and 2).
#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <tuple>

#include "planner/sweep/layout.h"
#include "planner/sweep/plan.h"

namespace lorad::planner {
namespace {

class Recursion {
 public:
  Recursion(const SweepProblem& problem, SweepRule rule, bool any_order, int64_t nodes_max)
      : problem_(problem), rule_(rule), any_order_(any_order), nodes_left_(nodes_max) {}

  // The best policy for g GPUs of degrees up to `most`; what is best for the rest does not depend
  // on what was taken before, for the larger of two makespans as for the sum of throughputs.
  const SweepPolicy& Solve(int g, int most, const SweepCounts& left) {
    const auto key = std::make_tuple(g, any_order_ ? 0 : most, left);
    if (const auto found = known_.find(key); found != known_.end()) return found->second;
    SweepPolicy best;
    bool any = false;
    if (g > 0) {
      std::vector<SweepSet> sets = Sets(g, most, left);
      for (SweepSet& set : sets) {
        SweepCounts rest = left;
        for (size_t k = 0; k < rest.size(); ++k) rest[k] -= set.counts[k];
        SweepPolicy policy = Solve(g - set.gpus, set.gpus, rest);
        policy.makespan_s = std::max(policy.makespan_s, set.seconds);
        policy.throughput += set.ratio;
        policy.exact = policy.exact && set.exact;
        policy.sets.insert(policy.sets.begin(), std::move(set));
        if (!any || Better(policy, best)) best = std::move(policy);
        any = true;
      }
    }
    return known_.emplace(key, std::move(best)).first->second;
  }
  int64_t calls() const { return calls_; }
  bool limited() const { return nodes_left_ <= 0; }

 private:
  // F(d, left) of every degree that holds anything; past the node limit only the best a GPU.
  std::vector<SweepSet> Sets(int g, int most, const SweepCounts& left) {
    std::vector<SweepSet> sets;
    for (auto degree = problem_.degrees().rbegin(); degree != problem_.degrees().rend(); ++degree) {
      if (degree->gpus > g || (!any_order_ && degree->gpus > most)) continue;
      ++calls_;
      --nodes_left_;
      SweepSet set = BestSweepSet(problem_, *degree, left);
      if (!set.empty()) sets.push_back(std::move(set));
    }
    if (nodes_left_ <= 0 && sets.size() > 1) {
      const auto best = std::max_element(
          sets.begin(), sets.end(),
          [](const SweepSet& a, const SweepSet& b) { return a.ratio * b.gpus < b.ratio * a.gpus; });
      sets = {*best};
    }
    return sets;
  }

  bool Better(const SweepPolicy& a, const SweepPolicy& b) const {
    return rule_ == SweepRule::kLeastMakespan
               ? std::tie(a.makespan_s, b.throughput) < std::tie(b.makespan_s, a.throughput)
               : std::tie(a.throughput, b.makespan_s) > std::tie(b.throughput, a.makespan_s);
  }

  const SweepProblem& problem_;
  const SweepRule rule_;
  const bool any_order_;
  int64_t nodes_left_;
  int64_t calls_ = 0;
  std::map<std::tuple<int, int, SweepCounts>, SweepPolicy> known_;
};

const SweepProblem::Degree& DegreeOf(const SweepProblem& problem, int gpus) {
  const auto found = std::find_if(problem.degrees().begin(), problem.degrees().end(),
                                  [&](const auto& degree) { return degree.gpus == gpus; });
  assert(found != problem.degrees().end());
  return *found;
}

std::vector<SweepRun> RunsOf(const SweepProblem& problem, const SweepCounts& counts) {
  std::vector<SweepRun> runs;
  for (size_t k = 0; k < counts.size(); ++k) {
    runs.insert(runs.end(), counts[k], {static_cast<int32_t>(k), 0, 0, problem.kinds()[k].steps});
  }
  return runs;
}

}  // namespace

SweepPolicy Dtm(const SweepProblem& problem, int gpus, const SweepCounts& left, SweepRule rule,
                int64_t nodes_max) {
  Recursion recursion(problem, rule, gpus <= kAnyOrderGpusMax, nodes_max);
  SweepPolicy policy = recursion.Solve(gpus, gpus, left);
  policy.nodes = recursion.calls();
  policy.exact = policy.exact && !recursion.limited();
  return policy;
}

bool RulesAffordable(const SweepProblem& problem) {
  size_t lengths = 1;
  for (size_t k = 1; k < problem.kinds().size(); ++k) {
    if (problem.kinds()[k].steps != problem.kinds()[k - 1].steps) ++lengths;
  }
  return problem.gpus() <= 64 && problem.kinds().size() * lengths <= 4096;
}

SweepPlan PlanByThroughput(const SweepProblem& problem, SweepRule rule, int64_t nodes_max) {
  SweepPlan plan;
  plan.by = rule == SweepRule::kLeastMakespan ? "DTM (least makespan)" : "DTM (most throughput)";
  SweepCounts left = problem.All();
  int remaining = std::accumulate(left.begin(), left.end(), 0);
  std::vector<std::vector<int>> indexes = FreeIndexes(problem);
  std::vector<int> free(problem.gpus());
  std::iota(free.begin(), free.end(), 0);
  using Event = std::pair<double, std::vector<int>>;  // GPUs that come free
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events;
  double now = 0;
  while (remaining > 0) {
    const SweepPolicy policy = Dtm(problem, static_cast<int>(free.size()), left, rule, nodes_max);
    plan.exact_sets = plan.exact_sets && policy.exact;
    for (const SweepSet& set : policy.sets) {
      const std::vector<int> gpus(free.begin(), free.begin() + set.gpus);
      free.erase(free.begin(), free.begin() + set.gpus);
      std::vector<SweepJob> jobs = JobsOf(problem, DegreeOf(problem, set.gpus),
                                          RunsOf(problem, set.counts), gpus, now, &indexes);
      assert(jobs.size() == 1);
      events.emplace(jobs[0].end_s, gpus);
      plan.jobs.push_back(std::move(jobs[0]));
      for (size_t k = 0; k < left.size(); ++k) {
        left[k] -= set.counts[k];
        remaining -= set.counts[k];
      }
    }
    if (remaining == 0) break;
    // Nothing may have fitted the free GPUs; every configuration fits some degree once all are.
    assert(!events.empty());
    now = events.top().first;
    while (!events.empty() && events.top().first <= now) {
      free.insert(free.end(), events.top().second.begin(), events.top().second.end());
      events.pop();
    }
    std::sort(free.begin(), free.end());
  }
  FinishPlan(problem, &plan);
  return plan;
}

}  // namespace lorad::planner
