#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/calls/session.h"

namespace lorad::client {

// Writes into `job` the id of the job that a user means by it: an id ("job-" and 8 letters and
// digits) stays as it is, everything else is the display name of a job. What names no job stays too,
// for the service to refuse. Errors: AMBIGUOUS_NAME with a line for each job that has the name, and
// those of the call.
absl::Status FindJob(Session& session, std::string& job);

// All of them, before anything is done to the first.
absl::Status FindJobs(Session& session, std::vector<std::string>& jobs);

}  // namespace lorad::client
