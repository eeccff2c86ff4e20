#include "server/core/jobs/evaluations_left.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

planner::EvaluationWork Work(int64_t parts, int64_t tokens) {
  return {.parts = parts, .tokens = tokens, .squared_lengths = 7.0 * static_cast<double>(tokens)};
}

// Ten steps, evaluated after every third and the last: after 0, 3, 6, 9 and 10; each of 20
// sequences of 7 tokens in parts of 8 sequences, so in three parts.
JobState Evaluated(int64_t step) {
  JobState job;
  job.job().set_validation_dataset("valid");
  job.job().set_total_steps(10);
  job.job().set_step(step);
  job.job().mutable_training()->set_eval_every_steps(3);
  job.record.set_validation_rows(20);
  job.record.set_validation_tokens(140);
  job.record.set_validation_squared_lengths(980);
  return job;
}

int64_t DueFrom(int64_t step) {
  int64_t due = 0;
  for (const int64_t one : {0, 3, 6, 9, 10}) due += one >= step;
  return due;
}

TEST_CASE("whole evaluations are left of a job that is at none") {
  for (int64_t step = 1; step <= 10; ++step) {
    INFO(step);
    const auto left = EvaluationsLeft(Evaluated(step), 8);
    CHECK(left == Work(3 * DueFrom(step), 140 * DueFrom(step)));
  }
}

TEST_CASE("what is done of an evaluation is not left") {
  JobState job = Evaluated(6);
  job.evaluation.step = 6;
  job.evaluation.next = 8;
  CHECK(EvaluationsLeft(job, 8) == Work(3 * 3 - 1, 140 * 3 - 8 * 7));
  job.evaluation.next = 20;
  CHECK(EvaluationsLeft(job, 8) == Work(3 * 2, 140 * 2));
  // Of an older one it says nothing.
  job.job().set_step(9);
  CHECK(EvaluationsLeft(job, 8) == Work(3 * 2, 140 * 2));
}

TEST_CASE("evaluations that are persisted are not done again") {
  JobState job = Evaluated(6);
  job.record.set_evaluated_end(7);
  CHECK(EvaluationsLeft(job, 8) == Work(3 * 2, 140 * 2));
  job.record.set_evaluated_end(11);
  CHECK(EvaluationsLeft(job, 8) == planner::EvaluationWork{});
}

TEST_CASE("of a job that is not evaluated nothing is left, and of an old record no tokens") {
  JobState job = Evaluated(6);
  job.job().clear_validation_dataset();
  CHECK(EvaluationsLeft(job, 8) == planner::EvaluationWork{});
  job = Evaluated(6);
  job.record.clear_validation_tokens();
  job.record.clear_validation_squared_lengths();
  CHECK(EvaluationsLeft(job, 8) == Work(9, 0));
  job.record.clear_validation_rows();
  CHECK(EvaluationsLeft(job, 8) == planner::EvaluationWork{});
}

}  // namespace
}  // namespace lorad::server
