// Which checkpoints a job has, and which of them its settings let go:
// training.checkpoint_keep_last and training.checkpoint_keep_best.
//
// Kept are: the newest `keep_last` (0: all, or with `keep_best` the newest alone); the `keep_best`
// of the lowest validation loss, of equal ones the newer; those that are yet to be evaluated, while
// the job lives and some are kept for being best; the newest in any case, and the step at which the
// job stands, for its slot may be on its way from there.
// A function of the record alone, so that it says the same after any restart. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

// Whether the settings let any go.
bool KeepsSome(const v1::TrainingConfig& training);

// Steps, ascending.
std::vector<int64_t> PassedCheckpoints(const records::JobRecord& record);

// The checkpoint of the lowest validation loss, of equal ones the newest; 0: none was evaluated.
int64_t BestCheckpoint(const records::JobRecord& record);

// Losses of steps that have no checkpoint and will get none are forgotten. REQUIRES: none is being
// written.
void ForgetLosses(records::JobRecord& record);

// NOT_FOUND (CHECKPOINT_NOT_FOUND): it has none of this step (0: of any); names the newest that it
// has.
absl::Status NoCheckpoint(const records::JobRecord& record, int64_t step);

}  // namespace lorad::server
