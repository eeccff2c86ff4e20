#include "server/core/rules/due.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

TEST_CASE("as many evaluations are due as steps of which each says so") {
  for (const bool validates : {true, false}) {
    for (const int64_t total : {0, 1, 2, 6, 7}) {
      for (const int32_t every : {0, 1, 2, 3, 6, 9}) {
        for (int64_t finish = 0; finish <= total; ++finish) {
          v1::Job job;
          if (validates) job.set_validation_dataset("valid");
          job.set_total_steps(total);
          job.set_finish_step(finish);
          job.mutable_training()->set_eval_every_steps(every);
          int64_t due = 0;
          for (int64_t first = total + 1; first >= 0; --first) {
            INFO(total << " steps, every " << every << ", finish " << finish << ", from " << first);
            due += first <= total && EvaluationDue(job, first) ? 1 : 0;
            CHECK(EvaluationsDue(job, first) == due);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace lorad::server
