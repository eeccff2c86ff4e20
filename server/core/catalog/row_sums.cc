#include "server/core/catalog/row_sums.h"

#include <algorithm>
#include <cmath>

namespace lorad::server {

int64_t StepsOfEpoch(const records::JobRecord& record) {
  const int64_t batch = std::max<int64_t>(record.job().training().batch_size(), 1);
  return std::max<int64_t>((record.training_rows() + batch - 1) / batch, 1);
}

int64_t TotalSteps(const records::JobRecord& record) {
  const v1::TrainingConfig& training = record.job().training();
  if (training.max_steps() > 0) return training.max_steps();
  return StepsOfEpoch(record) * training.epochs();
}

int64_t TotalTokens(const records::JobRecord& record) {
  const v1::Job& job = record.job();
  if (record.training_rows() <= 0 || record.training_row_tokens() <= 0) return job.total_tokens();
  const int64_t batch = job.training().batch_size();
  const int64_t of_epoch = StepsOfEpoch(record);
  const int64_t steps = TotalSteps(record);
  const int64_t whole = steps / of_epoch * record.training_row_tokens();
  // Of the epoch that is cut short: what it has trained, and what is to come.
  const int64_t done_rows = std::max<int64_t>(job.step() - steps / of_epoch * of_epoch, 0) * batch;
  const int64_t done_tokens = done_rows > 0 ? std::max<int64_t>(job.tokens() - whole, 0) : 0;
  const int64_t rows_to_come = steps % of_epoch * batch - done_rows;
  const double mean =
      static_cast<double>(std::max<int64_t>(record.training_row_tokens() - done_tokens, 0)) /
      static_cast<double>(std::max<int64_t>(record.training_rows() - done_rows, 1));
  return whole + done_tokens +
         std::llround(mean * static_cast<double>(std::max<int64_t>(rows_to_come, 0)));
}

void SetTotals(records::JobRecord& record) {
  v1::Job& job = *record.mutable_job();
  job.set_total_tokens(TotalTokens(record));
  if (record.training_row_tokens() <= 0 || record.training_row_squared_lengths() <= 0) return;
  job.set_total_squared_lengths(record.training_row_squared_lengths() *
                                static_cast<double>(job.total_tokens()) /
                                static_cast<double>(record.training_row_tokens()));
}

}  // namespace lorad::server
