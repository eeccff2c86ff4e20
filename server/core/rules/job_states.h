// The states of a job, and which may follow which. v1::Job::State documents each.
#pragma once

#include <string>

#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

// Whether a job may go from one state straight to another.
bool IsLegal(v1::Job::State from, v1::Job::State to);

// Not SUCCEEDED, CANCELLED or FAILED.
bool IsLive(v1::Job::State state);

// In a group: PREPARING, RUNNING, PAUSING or FINALIZING.
bool IsPlaced(v1::Job::State state);

std::string ToText(v1::Job::State state);

}  // namespace lorad::server
