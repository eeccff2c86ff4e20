// Looks up what a job's names stand for.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "lorad/v1/jobs.pb.h"
#include "server/driver/driver.h"
#include "server/errors/errors.h"
#include "server/validation/job.h"

namespace lorad::server {

// The requests to the driver about the job.
std::vector<Request> ReferencesOf(const v1::Job& job);

// Completes `job` (validation/job.h) with the answers to these requests, and with what
// adapter.init_from names, which it reads. INVALID_ARGUMENT with every violation, also that the
// matrices of adapter.init_from do not fit the base model.
absl::Status CompleteAgainst(Driver& driver, const std::vector<absl::StatusOr<ReplyValue>>& answers,
                             v1::Job& job);

}  // namespace lorad::server
