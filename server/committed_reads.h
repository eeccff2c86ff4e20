// Answers requests from what is committed. While a commit waits for room on the disk the core is
// ahead of the store, so nobody may be told what it thinks.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "server/core/events.h"
#include "storage/job_store.h"

namespace lorad::server {

// None: the request is no read, or asks for what no store knows (the cluster, workers: Core::Look).
// A queued job's place is left out, and its `why` is `why`; lists of jobs are whole also where a
// summary was asked for. `newest_revision` is the newest that watchers were told. Any thread.
std::optional<absl::StatusOr<ReplyValue>> ReadCommitted(storage::JobStore& store,
                                                        const Request& request,
                                                        int64_t newest_revision,
                                                        const std::string& why);

}  // namespace lorad::server
