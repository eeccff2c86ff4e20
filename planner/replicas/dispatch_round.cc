// From cut sequences to whole ones.
#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "planner/replicas/dispatch_search.h"

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kMovesMax = 400;
using Counts = std::vector<std::vector<int64_t>>;

int64_t CeilDivide(int64_t a, int64_t b) { return (a + b - 1) / b; }

class Improver {
 public:
  Improver(const GroupLoads& loads, Counts counts) : loads_(loads), counts_(std::move(counts)) {
    for (size_t i = 0; i < loads.groups(); ++i) ms_.push_back(loads.Ms(i, counts_[i]));
  }

  // Whole sequences up to B_j: one more a replica where that ends first; longest buckets first.
  void FillUp() {
    for (int j = static_cast<int>(loads_.buckets()) - 1; j >= 0; --j) {
      while (Missing(j) > 0) {
        size_t best = 0;
        double best_ms = kInfinity;
        for (size_t i = 0; i < loads_.groups(); ++i) {
          const double ms = With(i, j, 1);
          if (ms < best_ms) {
            best_ms = ms;
            best = i;
          }
        }
        Add(best, j, 1);
      }
    }
  }

  // Takes a sequence a replica from the busiest group, as long as others can have it and none of
  // them gets as busy.
  Counts Improve() {
    for (int move = 0; move < kMovesMax; ++move) {
      DropSurplus();
      const size_t busiest = std::max_element(ms_.begin(), ms_.end()) - ms_.begin();
      if (!MoveFrom(busiest)) break;
    }
    return counts_;
  }

 private:
  int64_t Missing(size_t bucket) const {
    int64_t missing = loads_.sequences(bucket);
    for (size_t i = 0; i < loads_.groups(); ++i) missing -= loads_.replicas(i) * counts_[i][bucket];
    return missing;
  }

  double With(size_t group, size_t bucket, int64_t more) {
    if (more > 0 && loads_.fits(group, bucket) == 0) return kInfinity;
    counts_[group][bucket] += more;
    const double ms = loads_.Ms(group, counts_[group]);
    counts_[group][bucket] -= more;
    return ms;
  }

  void Add(size_t group, size_t bucket, int64_t more) {
    counts_[group][bucket] += more;
    ms_[group] = loads_.Ms(group, counts_[group]);
  }

  // A sequence that is covered without it need not be trained.
  void DropSurplus() {
    for (size_t j = 0; j < loads_.buckets(); ++j) {
      for (size_t i = 0; i < loads_.groups(); ++i) {
        while (counts_[i][j] > 0 && Missing(j) + loads_.replicas(i) <= 0) Add(i, j, -1);
      }
    }
  }

  bool MoveFrom(size_t busiest) {
    const double before = ms_[busiest];
    double best_ms = before * (1 - 1e-12);
    size_t best_bucket = 0, best_to = 0;
    int64_t best_more = 0;
    for (size_t j = 0; j < loads_.buckets(); ++j) {
      if (counts_[busiest][j] == 0) continue;
      const double without = With(busiest, j, -1);
      const int64_t need = Missing(j) + loads_.replicas(busiest);
      for (size_t to = 0; to < loads_.groups(); ++to) {
        if (to == busiest || loads_.fits(to, j) == 0) continue;
        const int64_t more = CeilDivide(need, loads_.replicas(to));
        const double ms = std::max(without, With(to, j, more));
        if (ms < best_ms) {
          best_ms = ms;
          best_bucket = j;
          best_to = to;
          best_more = more;
        }
      }
    }
    if (best_more == 0) return false;
    Add(busiest, best_bucket, -1);
    Add(best_to, best_bucket, best_more);
    return true;
  }

  const GroupLoads& loads_;
  Counts counts_;
  std::vector<double> ms_;
};

}  // namespace

Counts RoundAndImprove(const GroupLoads& loads, const Balance& balance) {
  Counts counts(loads.groups(), std::vector<int64_t>(loads.buckets(), 0));
  for (size_t i = 0; i < loads.groups(); ++i) {
    for (size_t j = 0; j < loads.buckets(); ++j) {
      const double share = balance.sequences[i][j] / static_cast<double>(loads.replicas(i));
      counts[i][j] = static_cast<int64_t>(std::floor(share + 1e-6));
    }
  }
  Improver improver(loads, std::move(counts));
  improver.FillUp();
  return improver.Improve();
}

GroupLoads::GroupLoads(const DispatchProblem& problem) : problem_(problem) {
  for (const ReplicaGroup& group : problem.groups) {
    fits_.emplace_back();
    cost_ms_.emplace_back();
    for (size_t j = 0; j < problem.lengths.size(); ++j) {
      const int64_t fit = group.layout.Fit(problem.lengths[j]);
      fits_.back().push_back(fit);
      double ms = kInfinity;
      if (fit > 0) {
        ms = group.layout.SequenceMs(problem.lengths[j]);
        // Among fixed sequences of its length it may fill a rest that is paid for.
        const bool shares = !group.fixed.empty() && group.fixed[j] > 0;
        if (!shares) ms += group.layout.stage_ms.constant_ms / static_cast<double>(fit);
      }
      cost_ms_.back().push_back(ms);
    }
  }
}

double GroupLoads::Ms(size_t group, const std::vector<int64_t>& counts) const {
  const ReplicaGroup& of = problem_.groups[group];
  if (of.fixed.empty()) return ReplicaMs(of.layout, problem_.lengths, counts);
  std::vector<int64_t> all = of.fixed;
  for (size_t j = 0; j < all.size(); ++j) all[j] += counts[j];
  return ReplicaMs(of.layout, problem_.lengths, all);
}

double GroupLoads::SingleMs() const {
  double longest = 0;
  std::vector<int64_t> one(buckets(), 0);
  for (size_t j = 0; j < buckets(); ++j) {
    if (sequences(j) == 0) continue;
    one[j] = 1;
    double best = kInfinity;
    for (size_t i = 0; i < groups(); ++i) {
      if (fits(i, j) > 0) best = std::min(best, Ms(i, one));
    }
    one[j] = 0;
    longest = std::max(longest, best);
  }
  return longest;
}

BalanceProblem GroupLoads::Rest(const Counts& counts, int last) const {
  BalanceProblem rest;
  for (size_t i = 0; i < groups(); ++i) {
    rest.base_ms.push_back(Ms(i, counts[i]));
    rest.replicas.push_back(static_cast<double>(replicas(i)));
    rest.cost_ms.emplace_back(cost_ms_[i].begin(), cost_ms_[i].begin() + last + 1);
  }
  for (int j = 0; j <= last; ++j) rest.sequences.push_back(static_cast<double>(sequences(j)));
  return rest;
}

void Complete(const DispatchProblem& problem, DispatchPlan* plan) {
  const GroupLoads loads(problem);
  plan->group_ms.clear();
  for (size_t i = 0; i < loads.groups(); ++i) {
    plan->group_ms.push_back(loads.Ms(i, plan->per_replica[i]));
  }
  plan->step_ms = *std::max_element(plan->group_ms.begin(), plan->group_ms.end());
  std::vector<size_t> busiest_first(loads.groups());
  for (size_t i = 0; i < loads.groups(); ++i) busiest_first[i] = i;
  std::stable_sort(busiest_first.begin(), busiest_first.end(),
                   [&](size_t a, size_t b) { return plan->group_ms[a] > plan->group_ms[b]; });
  plan->sequences.assign(loads.groups(), std::vector<int64_t>(loads.buckets(), 0));
  for (size_t j = 0; j < loads.buckets(); ++j) {
    int64_t surplus = -loads.sequences(j);
    for (size_t i = 0; i < loads.groups(); ++i) {
      plan->sequences[i][j] = loads.replicas(i) * plan->per_replica[i][j];
      surplus += plan->sequences[i][j];
    }
    assert(surplus >= 0);
    for (size_t i : busiest_first) {
      const int64_t less = std::min(surplus, plan->sequences[i][j]);
      plan->sequences[i][j] -= less;
      surplus -= less;
    }
  }
}

}  // namespace lorad::planner
