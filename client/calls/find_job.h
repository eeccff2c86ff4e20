#pragma once

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/calls/session.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// The jobs that have this display name, newest first, without their configuration; so many at most,
// 0: all.
absl::StatusOr<std::vector<lorad::v1::Job>> JobsNamed(Session& session, const std::string& name,
                                                      int most = 0);

// Writes into `job` the id of the job that a user means by it: an id ("job-" and 8 letters and
// digits) stays as it is, everything else is the display name of a job. What names no job stays
// too, for the service to refuse. Errors: NO_NAME for an empty one (a shell's variable that is not
// set, say), AMBIGUOUS_NAME with a line for each job that has the name, and those of the call.
absl::Status FindJob(Session& session, std::string& job);

// All of them; one that is named twice counts once.
absl::Status FindJobs(Session& session, std::vector<std::string>& jobs);

// Does it to each of the jobs, once all of them were found to be there: before that nothing is
// done. One that the service refuses holds up no other. Errors: those of FindJobs and of the call;
// where several are refused, the reason of the first, with a line for each.
absl::Status OnEachJob(Session& session, std::vector<std::string>& jobs,
                       absl::FunctionRef<absl::Status(const std::string& job)> act);

}  // namespace lorad::client
