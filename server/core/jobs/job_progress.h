// A job in part. The fields that every step changes, or a forecast, apart from those that seldom
// change: after a step they alone are stored, beside the job's record. And the fields that lists
// show.
#pragma once

#include <cstdint>
#include <string>

#include "lorad/v1/jobs.pb.h"
#include "server/core/events/records.pb.h"

namespace lorad::server {

// The job's name, revision, and what a step, a microbatch or a forecast changes of it;
// total_tokens, which follows from that and the record, is not among it.
v1::Job ProgressOf(const v1::Job& job);

// Makes `job` what it was, or became, at the revision of `progress`; its name stays.
void SetProgress(v1::Job progress, v1::Job* job);

// Job.epoch behind that step.
double EpochAt(const records::JobRecord& record, int64_t step);

// Makes the job what it was at its newest checkpoint: what came after it is not done. Its loss is
// not set where nobody knows it any more; validation_loss stays, for what was evaluated is not
// again.
void ShowCheckpoint(records::JobRecord& record);

// It waits where it is: it has no speed and no end.
void SetStalled(std::string why, v1::Job* job);

// Sets the part of it that ListJobsRequest::SUMMARY keeps. REQUIRES: the summary is empty.
void Summarize(const v1::Job& job, v1::Job& summary);

}  // namespace lorad::server
