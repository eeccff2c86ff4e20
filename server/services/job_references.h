// Looks up what a job's names stand for.
#pragma once

#include "absl/status/statusor.h"
#include "lorad/v1/jobs.pb.h"
#include "server/driver.h"
#include "server/errors/errors.h"
#include "server/validation/job.h"

namespace lorad::server {

// Completes `job` (validation/job.h) with what the driver knows. INVALID_ARGUMENT with every
// violation, also that the matrices of adapter.init_from do not fit the base model.
absl::Status CompleteAgainst(Driver& driver, v1::Job& job);

}  // namespace lorad::server
