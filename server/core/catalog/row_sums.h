// What follows from how many rows a job trains on, and how many tokens they have together
// (JobRecord::training_rows, training_row_tokens): its steps and tokens. Pure. REQUIRES everywhere:
// a batch has a row at least.
#pragma once

#include <cstdint>

#include "server/core/events/records.pb.h"

namespace lorad::server {

// At least 1.
int64_t StepsOfEpoch(const records::JobRecord& record);

// Of a job whose rows are known.
int64_t TotalSteps(const records::JobRecord& record);

// Tokens over all of its steps, as far as they are known at the step and the tokens that the job
// has done. Exact where whole epochs are trained. Where its last one is cut short, it depends on
// their order which of the rows these are: each that is still to come counts as the mean of those
// that this epoch has not trained yet, so that at the last step the total is what was trained.
// That of the job where older versions did not keep what it follows from.
int64_t TotalTokens(const records::JobRecord& record);

// Makes the job's total_tokens and total_squared_lengths what they are at its step: the squares
// that its rows have a token in the mean, for each of these.
void SetTotals(records::JobRecord& record);

}  // namespace lorad::server
