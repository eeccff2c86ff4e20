// What the policy is measured against; each decides as Schedule does, on the view alone.
#pragma once

#include <vector>

#include "planner/schedule/view.h"

namespace lorad::planner {

// Each job alone on a worker, in order of arrival, whatever its priority: the first of the queue
// takes the first idle worker that it fits, and until there is one nobody behind it is placed.
std::vector<Decision> FirstComeFirstServed(const ClusterView& view);

// One group a base model: all its jobs share one worker, and other workers serve other base models.
// Within its worker each follows Schedule, without evictions and moves. A base model gets the first
// idle worker that its first job fits; where none is idle, a group is dissolved that has no jobs
// and for which none wait.
std::vector<Decision> GangByGang(const ClusterView& view);

}  // namespace lorad::planner
