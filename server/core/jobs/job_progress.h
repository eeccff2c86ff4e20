// A job in part. The fields that every step changes, or a forecast, apart from those that seldom
// change: after a step they alone are stored, beside the job's record. And the fields that lists
// show.
#pragma once

#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

// The job's name, revision, and what a step, a microbatch or a forecast changes of it.
v1::Job ProgressOf(const v1::Job& job);

// Makes `job` what it was, or became, at the revision of `progress`; its name stays.
void SetProgress(v1::Job progress, v1::Job* job);

// The part of it that ListJobsRequest::SUMMARY keeps.
v1::Job SummaryOf(const v1::Job& job);

}  // namespace lorad::server
