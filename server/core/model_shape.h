#pragma once

#include "absl/status/statusor.h"
#include "planner/memory.h"
#include "planner/time.h"
#include "storage/model_description.h"

namespace lorad::server {

// What planning needs to know of a base model.
planner::ModelShape ShapeOf(const storage::ModelDescription& description);

// Its arithmetic, for a guess at time before anything was measured. `threads` of the worker.
planner::WorkModel WorkOf(const planner::ModelShape& shape, int threads);

}  // namespace lorad::server
