#include "server/core/rules/due.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace lorad::server {

int64_t EndStep(const v1::Job& job) {
  return job.finish_step() > 0 ? job.finish_step() : job.total_steps();
}

bool SaveDue(const v1::Job& job, int64_t step) {
  const int64_t every = job.training().checkpoint_every_steps();
  return step == job.total_steps() || (every > 0 && step % every == 0);
}

bool EvaluationDue(const v1::Job& job, int64_t step) {
  if (job.validation_dataset().empty()) return false;
  if (job.finish_step() > 0 && step >= job.finish_step()) return false;
  const int64_t every = job.training().eval_every_steps();
  return step == 0 || step == job.total_steps() || (every > 0 && step % every == 0);
}

int64_t EvaluationsDue(const v1::Job& job, int64_t first_step) {
  const int64_t total = job.total_steps(), every = job.training().eval_every_steps();
  const int64_t last = job.finish_step() > 0 ? std::min(job.finish_step() - 1, total) : total;
  if (job.validation_dataset().empty() || first_step > last) return 0;
  const auto multiples_to = [&](int64_t step) { return every > 0 ? step / every : 0; };
  const bool at_start = first_step == 0;
  const bool at_end = last == total && total != every * multiples_to(total);
  const int64_t before = multiples_to(std::max<int64_t>(first_step - 1, 0));
  return multiples_to(last) - before + (at_start ? 1 : 0) + (at_end ? 1 : 0);
}

std::string WhatItHas(const v1::Job& job) {
  const std::string has =
      absl::StrCat("its adapter is the checkpoint of step ", job.last_checkpoint_step());
  if (job.finish_step() == 0) return has;
  return absl::StrCat(has, ", of ", job.total_steps(),
                      " that were planned: its user asked it to finish");
}

}  // namespace lorad::server
