// A group as a record of the store, and back. What the record does not have is of no use to a
// coordinator that is started again: the plan that is awaited, moments, measurements, shards that
// are kept back. Of a job, what a group's record keeps (saved_tokens, the evaluation that is under
// way) is for the caller: members are in the order of their names. Pure.
#pragma once

#include <map>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/cluster/group_state.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

// The windows at hand by their key, each as it went to its worker (worker::v1::Window): records of
// their own, which are written once, and not with every turn that changes the group.
using WindowRecords = std::map<std::string, std::string>;

records::GroupRecord ToRecord(const GroupState& group);
std::string KeyOfWindow(const GroupState& group, const StageState& stage, int64_t number);

// In phase kReturning: none of its workers is back. Members lack their adapter's shape, and the
// group its device. INVALID_ARGUMENT where it is none that ToRecord makes, or a window at hand is
// not among `windows`.
absl::StatusOr<GroupState> FromRecord(const records::GroupRecord& record,
                                      const WindowRecords& windows);

}  // namespace lorad::server
