// How much the core keeps.
#pragma once

#include <cstdint>

namespace lorad::server {

// So many metric rows of a live job, after its newest checkpoint, are kept in memory, to be
// compared with those of steps that are executed again. A difference of an older step shows in
// these too: what it trained is another adapter.
inline constexpr int64_t kMetricRowsKept = 1024;

// A live job's record is stored at least every so many revisions, so that a start need not read the
// metric rows of long ago; in between, its progress alone.
inline constexpr int64_t kWholeEvery = 1024;

// The sizes of what is kept in memory. None of it grows with the time that the coordinator runs:
// CoreOptions bound some, the rest belongs to what is alive.
struct CoreSizes {
  int64_t live_jobs = 0;
  int64_t whole_jobs = 0;          // that are kept as more than their record
  int64_t ended_jobs_at_work = 0;  // of them: a slot is still to be freed, a checkpoint written
  int64_t metric_rows = 0;
  int64_t steps_after_checkpoints = 0;  // of live jobs: no more have a row
  int64_t request_ids = 0;
};

}  // namespace lorad::server
