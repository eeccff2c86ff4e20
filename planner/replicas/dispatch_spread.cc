// From groups to replicas, and the dispatching that LobRA compares itself with.
#include <algorithm>
#include <limits>

#include "planner/replicas/dispatch.h"
#include "planner/replicas/dispatch_search.h"

namespace lorad::planner {

namespace {

constexpr int64_t kEvaluationsMax = 400'000;  // of a replica's time
using Spread = std::vector<std::vector<std::vector<int64_t>>>;

Spread SpreadEvenly(const DispatchProblem& problem, const GroupLoads& loads,
                    const DispatchPlan& plan) {
  Spread spread;
  for (size_t i = 0; i < loads.groups(); ++i) {
    const int64_t replicas = loads.replicas(i);
    spread.emplace_back(replicas, std::vector<int64_t>(problem.lengths.size(), 0));
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

// Takes sequences from the slowest replica.
class Refiner {
 public:
  Refiner(const GroupLoads& loads, Spread* spread) : loads_(loads) {
    for (size_t i = 0; i < spread->size(); ++i) {
      for (std::vector<int64_t>& counts : (*spread)[i]) {
        replicas_.push_back({i, &counts, loads.Ms(i, counts)});
      }
    }
  }

  void Refine() {
    const auto slower = [](const Replica& a, const Replica& b) { return a.ms < b.ms; };
    while (evaluations_ < kEvaluationsMax) {
      Replica& slowest = *std::max_element(replicas_.begin(), replicas_.end(), slower);
      if (!Relieve(&slowest)) return;
    }
  }

 private:
  struct Replica {
    size_t group;
    std::vector<int64_t>* counts;
    double ms;
  };
  struct Change {
    Replica* to = nullptr;
    size_t give = 0;
    int take = -1;  // bucket of the sequence that comes back; -1: none
    double ms = 0;  // of the slower of the two
  };

  // Time with a sequence of bucket `more` more and one of `less` less; -1: none.
  double With(const Replica& replica, int more, int less) {
    ++evaluations_;
    std::vector<int64_t>& counts = *replica.counts;
    if (more >= 0) ++counts[more];
    if (less >= 0) --counts[less];
    const double ms = loads_.Ms(replica.group, counts);
    if (more >= 0) --counts[more];
    if (less >= 0) ++counts[less];
    return ms;
  }

  bool Relieve(Replica* slowest) {
    Change best;
    best.ms = slowest->ms * (1 - 1e-12);
    const int buckets = static_cast<int>(loads_.buckets());
    for (int give = buckets - 1; give >= 0; --give) {
      if ((*slowest->counts)[give] == 0) continue;
      for (int take = -1; take < give; ++take) {
        if (take >= 0 && loads_.sequences(take) == 0) continue;
        const double without = With(*slowest, take, give);
        if (without >= best.ms) continue;
        for (Replica& to : replicas_) {
          if (&to == slowest || loads_.fits(to.group, give) == 0) continue;
          if (take >= 0 && (*to.counts)[take] == 0) continue;
          const double ms = std::max(without, With(to, give, take));
          if (ms < best.ms) best = {&to, static_cast<size_t>(give), take, ms};
        }
        if (evaluations_ >= kEvaluationsMax) break;
      }
    }
    if (best.to == nullptr) return false;
    --(*slowest->counts)[best.give];
    ++(*best.to->counts)[best.give];
    if (best.take >= 0) {
      ++(*slowest->counts)[best.take];
      --(*best.to->counts)[best.take];
    }
    slowest->ms = loads_.Ms(slowest->group, *slowest->counts);
    best.to->ms = loads_.Ms(best.to->group, *best.to->counts);
    return true;
  }

  const GroupLoads& loads_;
  std::vector<Replica> replicas_;
  int64_t evaluations_ = 0;
};

}  // namespace

std::vector<std::vector<std::vector<int64_t>>> SpreadOverReplicas(const DispatchProblem& problem,
                                                                  const DispatchPlan& plan) {
  const GroupLoads loads(problem);
  Spread spread = SpreadEvenly(problem, loads, plan);
  Refiner(loads, &spread).Refine();
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
