// A group as a record of the store, and back. What the record does not have is of no use to a
// coordinator that is started again: the plan that is awaited, moments, measurements, shards that
// are kept back. Of a job, what a group's record keeps (saved_tokens, the evaluation that is under
// way) is for the caller: members are in the order of their names. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "server/core/cluster/group_state.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

records::GroupRecord ToRecord(const GroupState& group);

// In phase kReturning: none of its workers is back. Members lack their adapter's shape, and the
// group its device. INVALID_ARGUMENT where it is none that ToRecord makes.
absl::StatusOr<GroupState> FromRecord(const records::GroupRecord& record);

// The stage goes on without the windows behind `last_window`, which have not come to it: nothing of
// them is awaited.
void ForgetWindows(StageState& stage, int64_t last_window);

}  // namespace lorad::server
