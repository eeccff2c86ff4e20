// A job in part. The fields that every step changes, apart from those that seldom change: after a
// step they alone are stored, beside the job's record. And the fields that lists show.
#pragma once

#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

// The job's name, revision, and what a step or a microbatch changes of it.
v1::Job ProgressOf(const v1::Job& job);

// Makes `job` what it was, or became, at the revision of `progress`; its name stays.
void SetProgress(v1::Job progress, v1::Job* job);

// The part of it that ListJobsRequest::SUMMARY keeps.
v1::Job SummaryOf(const v1::Job& job);

}  // namespace lorad::server
