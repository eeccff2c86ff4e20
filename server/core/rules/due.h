// Where a job ends, and at which of its steps something is due. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

// The step behind which nothing of it is trained: its last one, or where it was asked to finish.
int64_t EndStep(const v1::Job& job);

// Whether a step's end, as the job was configured, is to be saved. Where it was asked to finish the
// save is an order of its own.
bool SaveDue(const v1::Job& job, int64_t step);

// Likewise whether it is to be evaluated: where it was asked to finish, nothing is any more.
bool EvaluationDue(const v1::Job& job, int64_t step);

// How many evaluations are due at that step, which is not before the job's own, and behind it.
int64_t EvaluationsDue(const v1::Job& job, int64_t first_step);

// What a job that SUCCEEDED has: a sentence for its event.
std::string WhatItHas(const v1::Job& job);

}  // namespace lorad::server
