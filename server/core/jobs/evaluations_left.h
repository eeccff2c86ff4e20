// The evaluations that a job still has to do, as forecasts and estimates count them. Pure.
#pragma once

#include <cstdint>

#include "planner/schedule/ends.h"
#include "server/core/jobs/job_state.h"

namespace lorad::server {

// Whether one is due from its step on that is not persisted yet.
bool HasEvaluationsLeft(const JobState& job);

// Those due from its step on that are not persisted yet, less what is done of the one that is under
// way, in parts of so many sequences. Of a record that an older version wrote no tokens are known.
planner::EvaluationWork EvaluationsLeft(const JobState& job, int64_t part_sequences);

// Of the mean sequence of its validation set.
double ValidationTokens(const JobState& job, int64_t sequences);

}  // namespace lorad::server
