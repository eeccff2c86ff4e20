// From groups to replicas, and the dispatching that LobRA compares itself with.
#include <algorithm>
#include <limits>

#include "planner/dispatch.h"
#include "planner/dispatch_search.h"

namespace lorad::planner {

std::vector<std::vector<std::vector<int64_t>>> SpreadOverReplicas(const DispatchProblem& problem,
                                                                  const DispatchPlan& plan) {
  std::vector<std::vector<std::vector<int64_t>>> spread;
  const GroupLoads loads(problem);
  for (size_t i = 0; i < loads.groups(); ++i) {
    const int64_t replicas = loads.replicas(i);
    spread.emplace_back(replicas, std::vector<int64_t>(loads.buckets(), 0));
    std::vector<double> ms(replicas, loads.Ms(i, spread[i][0]));
    for (int j = static_cast<int>(loads.buckets()) - 1; j >= 0; --j) {
      const int64_t share = plan.sequences[i][j] / replicas;
      std::vector<int64_t> least_busy(replicas);
      for (int64_t k = 0; k < replicas; ++k) least_busy[k] = k;
      std::stable_sort(least_busy.begin(), least_busy.end(),
                       [&](int64_t a, int64_t b) { return ms[a] < ms[b]; });
      for (int64_t place = 0; place < replicas; ++place) {
        const int64_t k = least_busy[place];
        spread[i][k][j] = share + (place < plan.sequences[i][j] % replicas ? 1 : 0);
        ms[k] = loads.Ms(i, spread[i][k]);
      }
    }
  }
  return spread;
}

double SpreadMs(const DispatchProblem& problem,
                const std::vector<std::vector<std::vector<int64_t>>>& spread) {
  const GroupLoads loads(problem);
  double slowest = 0;
  for (size_t i = 0; i < spread.size(); ++i) {
    for (const std::vector<int64_t>& counts : spread[i]) {
      slowest = std::max(slowest, loads.Ms(i, counts));
    }
  }
  return slowest;
}

absl::StatusOr<DispatchPlan> DispatchUniformly(const DispatchProblem& problem) {
  if (absl::Status status = CheckDispatch(problem); !status.ok()) return status;
  const GroupLoads loads(problem);
  DispatchPlan plan;
  plan.per_replica.assign(loads.groups(), std::vector<int64_t>(loads.buckets(), 0));
  for (size_t j = 0; j < loads.buckets(); ++j) {
    int64_t replicas = 0;
    for (size_t i = 0; i < loads.groups(); ++i) {
      if (loads.fits(i, j) > 0) replicas += loads.replicas(i);
    }
    for (size_t i = 0; i < loads.groups(); ++i) {
      if (loads.fits(i, j) > 0) {
        plan.per_replica[i][j] = (loads.sequences(j) + replicas - 1) / replicas;
      }
    }
  }
  Complete(problem, &plan);
  return plan;
}

absl::StatusOr<DispatchPlan> DispatchByLength(const DispatchProblem& problem) {
  if (absl::Status status = CheckDispatch(problem); !status.ok()) return status;
  const GroupLoads loads(problem);
  DispatchPlan plan;
  plan.per_replica.assign(loads.groups(), std::vector<int64_t>(loads.buckets(), 0));
  for (size_t j = 0; j < loads.buckets(); ++j) {
    if (loads.sequences(j) == 0) continue;
    size_t best = 0;
    double best_seconds = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < loads.groups(); ++i) {
      const Layout& layout = problem.groups[i].layout;
      if (loads.fits(i, j) == 0) continue;
      const double seconds =
          layout.gpus() * (layout.SequenceMs(problem.lengths[j]) +
                           layout.stage_ms.constant_ms / static_cast<double>(loads.fits(i, j)));
      if (seconds < best_seconds) {
        best_seconds = seconds;
        best = i;
      }
    }
    plan.per_replica[best][j] =
        (loads.sequences(j) + loads.replicas(best) - 1) / loads.replicas(best);
  }
  Complete(problem, &plan);
  return plan;
}

}  // namespace lorad::planner
