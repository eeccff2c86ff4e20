// Jobs that are drawn: a load on a cluster, the same for the same seed on every machine.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "planner/replay/history.h"
#include "planner/solve/draw.h"

namespace lorad::planner {

// One of several, each with its share of the draws.
template <class T>
struct Shared {
  std::vector<double> shares;
  std::vector<T> kinds;

  const T& Pick(Draw& draw) const { return kinds[draw.Pick(shares)]; }
};

// Bursts of jobs come as a Poisson process does: the gaps between them are exponential. A burst is
// one user's, on one base model and of one priority, as a sweep is; its size is geometric.
struct Load {
  struct BaseModel {
    std::string name;
    std::shared_ptr<const ModelShape> shape;
    TimeCoefficients times;  // that alone_s goes by
  };
  uint64_t seed = 0;
  size_t jobs = 0;
  double gap_s = 0;  // between two jobs in the mean, whatever the bursts
  double burst = 1;  // jobs of one, in the mean; 1: each comes by itself
  int64_t users = 1;
  Shared<BaseModel> base_models;
  Shared<int64_t> priorities;
  std::vector<int64_t> ranks;  // equally often
  std::vector<std::string> targets;
  Shared<LogNormal> longest_sequence, step_tokens;
  // How many steps a job has; or, where that has no kinds, how many seconds it trains for alone,
  // with a microbatch a step.
  Shared<LogNormal> steps, alone_s;
};

// In order of arrival, the first at 0. REQUIRES: kinds of everything, and times above 0 where
// alone_s counts.
std::vector<HistoryJob> DrawJobs(const Load& load);

}  // namespace lorad::planner
