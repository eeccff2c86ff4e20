// A store as it is after so many jobs have come, trained and succeeded.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "storage/job_store.h"

namespace lorad::bench {

inline constexpr int kFailedEvery = 1000;  // every so manieth has failed instead

// The name of the i-th job, from 0, oldest first.
std::string FinishedJobName(int64_t i);

// Each with a request_id answered at `now_us`, 6 events, 10 steps, 2 evaluations and a checkpoint;
// and one model and two datasets that they name.
absl::Status StoreFinishedJobs(storage::JobStore& store, int64_t jobs, int64_t now_us);

}  // namespace lorad::bench
