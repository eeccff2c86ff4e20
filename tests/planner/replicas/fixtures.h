// Small random dispatches and deployments, and their optima by trying everything.
#pragma once

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "planner/replicas/dispatch.h"

namespace lorad::planner {

inline double Uniform(std::mt19937* random, double low, double high) {
  return std::uniform_real_distribution<>(low, high)(*random);
}

// 1 to `most`.
inline int64_t UpTo(std::mt19937* random, int64_t most) {
  return 1 + static_cast<int64_t>((*random)() % static_cast<uint64_t>(most));
}

// Faster the fewer GPUs, as real ones are; holds 10 tokens a GPU and one length of 40 at most.
inline Layout RandomLayout(std::mt19937* random) {
  Layout layout;
  layout.tensor_parallel = 1 << ((*random)() % 3);
  layout.pipeline_stages = 1 << ((*random)() % 2);
  layout.capacity_tokens = 10 * layout.gpus() + static_cast<int64_t>((*random)() % 8);
  const double slow = Uniform(random, 1, 1.5) / layout.gpus();
  layout.stage_ms = {(*random)() % 3 ? 10 * Uniform(random, 0, 1) : 0, slow,
                     (*random)() % 2 ? 0.05 * slow : 0};
  return layout;
}

inline DispatchProblem RandomDispatch(std::mt19937* random, bool with_fixed) {
  DispatchProblem problem;
  const int64_t buckets = UpTo(random, 3);
  int64_t length = 0;
  for (int64_t j = 0; j < buckets; ++j) {
    length += UpTo(random, 6);
    problem.lengths.push_back(length);
    problem.sequences.push_back(static_cast<int64_t>((*random)() % 6));
  }
  const int64_t groups = UpTo(random, 3);
  for (int64_t i = 0; i < groups; ++i) {
    ReplicaGroup group{RandomLayout(random), static_cast<int>(UpTo(random, 3)), {}};
    // Some hold short sequences only.
    if (i > 0 && (*random)() % 2) group.layout.capacity_tokens = problem.lengths[0];
    if (i == 0) group.layout.capacity_tokens = std::max(group.layout.capacity_tokens, length);
    if (with_fixed && (*random)() % 2) {
      for (int64_t l : problem.lengths) {
        group.fixed.push_back(group.layout.Fit(l) > 0 ? static_cast<int64_t>((*random)() % 3) : 0);
      }
    }
    problem.groups.push_back(group);
  }
  return problem;
}

// The least time over all ways to give out whole sequences, n_ij each replica of group i.
inline double BestOfAll(const DispatchProblem& problem) {
  const size_t groups = problem.groups.size(), buckets = problem.lengths.size();
  std::vector<std::vector<int64_t>> counts(groups, std::vector<int64_t>(buckets, 0));
  double best = std::numeric_limits<double>::infinity();
  const std::function<void(size_t, size_t, int64_t)> share = [&](size_t j, size_t i, int64_t left) {
    if (i == groups) {
      if (left > 0) return;
      if (j + 1 < buckets) return share(j + 1, 0, problem.sequences[j + 1]);
      double slowest = 0;
      for (size_t g = 0; g < groups; ++g) {
        std::vector<int64_t> all = counts[g];
        const std::vector<int64_t>& fixed = problem.groups[g].fixed;
        for (size_t b = 0; b < fixed.size(); ++b) all[b] += fixed[b];
        slowest = std::max(slowest, ReplicaMs(problem.groups[g].layout, problem.lengths, all));
      }
      best = std::min(best, slowest);
      return;
    }
    const int64_t replicas = problem.groups[i].replicas;
    const int64_t most = problem.groups[i].layout.Fit(problem.lengths[j]) > 0 && left > 0
                             ? (left + replicas - 1) / replicas
                             : 0;
    for (int64_t n = 0; n <= most; ++n) {
      counts[i][j] = n;
      share(j, i + 1, left - n * replicas);
    }
    counts[i][j] = 0;
  };
  share(0, 0, problem.sequences[0]);
  return best;
}

// A plan's own figures fit together, and everything is given out.
inline void CheckConsistent(const DispatchProblem& problem, const DispatchPlan& plan) {
  for (size_t j = 0; j < problem.lengths.size(); ++j) {
    int64_t sum = 0;
    for (size_t i = 0; i < problem.groups.size(); ++i) {
      const ReplicaGroup& group = problem.groups[i];
      CHECK(plan.sequences[i][j] >= 0);
      CHECK(plan.sequences[i][j] <= group.replicas * plan.per_replica[i][j]);
      if (group.layout.Fit(problem.lengths[j]) == 0) CHECK(plan.sequences[i][j] == 0);
      sum += plan.sequences[i][j];
    }
    CHECK(sum == problem.sequences[j]);
  }
  const auto spread = SpreadOverReplicas(problem, plan);
  CHECK(SpreadMs(problem, spread) <= plan.step_ms * (1 + 1e-9));
  std::vector<int64_t> sum(problem.lengths.size(), 0);
  for (size_t i = 0; i < spread.size(); ++i) {
    CHECK(static_cast<int>(spread[i].size()) == problem.groups[i].replicas);
    for (const std::vector<int64_t>& counts : spread[i]) {
      for (size_t j = 0; j < counts.size(); ++j) {
        CHECK(counts[j] >= 0);
        sum[j] += counts[j];
      }
    }
  }
  CHECK(sum == problem.sequences);
  CHECK(SpreadMs(problem, spread) >= plan.linear_bound_ms * (1 - 1e-9));
}

}  // namespace lorad::planner
