// Answers requests from what is committed. While a commit waits for room on the disk the core is
// ahead of the store, so no answer may come from it.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "server/core/events/events.h"
#include "storage/job_store.h"

namespace lorad::server {

// Facts that the store does not hold.
struct Uncommitted {
  std::string why;  // jobs wait, in the queue, where their place is left out, or in a group
  v1::ClusterStatus cluster;  // for GetCluster, which counts jobs as they are stored
};

// A read that the store answers; others are of what no store knows (workers, Core::Look), or
// writes.
bool IsCommittedRead(const Request& request);

// REQUIRES: IsCommittedRead. Any thread; reads as many records as there are.
absl::StatusOr<ReplyValue> ReadCommitted(storage::JobStore& store, const Request& request,
                                         const Uncommitted& beside);

}  // namespace lorad::server
