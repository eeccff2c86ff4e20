#include "server/core/jobs/evaluations_left.h"

#include <algorithm>
#include <cmath>

#include "server/core/rules/due.h"

namespace lorad::server {
namespace {

int64_t FirstStep(const JobState& job) {
  return std::max(job.job().step(), job.record.evaluated_end());
}

}  // namespace

bool HasEvaluationsLeft(const JobState& job) {
  return EvaluationsDue(job.job(), FirstStep(job)) > 0;
}

planner::EvaluationWork EvaluationsLeft(const JobState& job, int64_t part_sequences) {
  const int64_t first_step = FirstStep(job);
  const int64_t evaluations = EvaluationsDue(job.job(), first_step);
  const int64_t of_each = job.record.validation_rows();
  if (evaluations == 0 || of_each == 0) return {};
  const int64_t done =
      job.evaluation.step >= first_step ? std::min(job.evaluation.next, of_each) : 0;
  const auto parts_of = [&](int64_t sequences) {
    return (sequences + part_sequences - 1) / part_sequences;
  };
  const int64_t left = evaluations * of_each - done;
  return {.parts = (evaluations - 1) * parts_of(of_each) + parts_of(of_each - done),
          .tokens = std::llround(ValidationTokens(job, left)),
          .squared_lengths = static_cast<double>(left) * job.record.validation_squared_lengths() /
                             static_cast<double>(of_each)};
}

double ValidationTokens(const JobState& job, int64_t sequences) {
  return static_cast<double>(sequences) * static_cast<double>(job.record.validation_tokens()) /
         static_cast<double>(std::max<int64_t>(job.record.validation_rows(), 1));
}

}  // namespace lorad::server
