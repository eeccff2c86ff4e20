// What is foreseen of jobs, by their names.
#pragma once

#include <map>
#include <string>

#include "planner/foresight/foresee.h"

namespace lorad::planner {

using ByName = std::map<std::string, Foreseen>;

// Those of which something is foreseen.
inline ByName ForeseeByName(const ClusterView& view) {
  const Foresight foresight = Foresee(view);
  ByName seen;
  for (const QueuedJob& job : view.queue) {
    if (const Foreseen* one = foresight.Find(view, job.job)) seen[job.job] = *one;
  }
  for (const auto& [job, one] : foresight.running) {
    if (one.end_s < kNever) seen[job] = one;
  }
  return seen;
}

}  // namespace lorad::planner
