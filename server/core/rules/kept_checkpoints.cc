#include "server/core/rules/kept_checkpoints.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/rules/due.h"
#include "server/core/rules/job_states.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// Checkpoints that were evaluated, the best first. A loss that is not finite is none.
std::vector<int64_t> ByLoss(const records::JobRecord& record) {
  std::vector<std::pair<double, int64_t>> losses;  // (loss, -step)
  for (const int64_t step : record.checkpoint_steps()) {
    const auto found = record.validation_losses().find(step);
    if (found == record.validation_losses().end() || !std::isfinite(found->second)) continue;
    losses.emplace_back(found->second, -step);
  }
  std::ranges::sort(losses);
  std::vector<int64_t> steps;
  for (const auto& [loss, step] : losses) steps.push_back(-step);
  return steps;
}

}  // namespace

bool KeepsSome(const v1::TrainingConfig& training) {
  return training.checkpoint_keep_last() > 0 || training.checkpoint_keep_best() > 0;
}

std::vector<int64_t> PassedCheckpoints(const records::JobRecord& record) {
  const v1::Job& job = record.job();
  const int64_t best = job.training().checkpoint_keep_best();
  if (!KeepsSome(job.training())) return {};
  const auto last = static_cast<size_t>(std::max(job.training().checkpoint_keep_last(), 1));
  std::vector<int64_t> steps(record.checkpoint_steps().begin(), record.checkpoint_steps().end());
  std::ranges::sort(steps);
  std::set<int64_t> kept = {job.last_checkpoint_step()};
  if (IsLive(job.state())) kept.insert(job.step());
  for (size_t i = 0; i < std::min(last, steps.size()); ++i)
    kept.insert(steps[steps.size() - 1 - i]);
  const std::vector<int64_t> by_loss = ByLoss(record);
  for (size_t i = 0; i < std::min(static_cast<size_t>(best), by_loss.size()); ++i) {
    kept.insert(by_loss[i]);
  }
  std::erase_if(steps, [&](int64_t step) {
    const bool to_come = best > 0 && IsLive(job.state()) && EvaluationDue(job, step) &&
                         step >= record.evaluated_end();
    return to_come || kept.contains(step);
  });
  return steps;
}

int64_t BestCheckpoint(const records::JobRecord& record) {
  const std::vector<int64_t> by_loss = ByLoss(record);
  return by_loss.empty() ? 0 : by_loss.front();
}

void ForgetLosses(records::JobRecord& record) {
  std::vector<int64_t> gone;
  for (const auto& [step, loss] : record.validation_losses()) {
    const bool there = std::ranges::count(record.checkpoint_steps(), step) > 0;
    if (!there && step < record.job().last_checkpoint_step()) gone.push_back(step);
  }
  for (const int64_t step : gone) record.mutable_validation_losses()->erase(step);
}

absl::Status NoCheckpoint(const records::JobRecord& record, int64_t step) {
  constexpr int kNamed = 5;
  const auto& steps = record.checkpoint_steps();
  const int older = std::max(0, steps.size() - kNamed);
  std::string has =
      absl::StrCat("; it has steps ", absl::StrJoin(steps.begin() + older, steps.end(), ", "),
                   older > 0 ? absl::StrCat(" and ", older, " older ones") : "");
  if (steps.empty()) {
    has =
        absl::StrCat(step != 0 ? "; it has none" : "", IsLive(record.job().state()) ? " yet" : "");
  }
  const std::string& name = record.job().name();
  return Error(absl::StatusCode::kNotFound, "CHECKPOINT_NOT_FOUND",
               absl::StrCat("job '", name, "' has no checkpoint",
                            step != 0 ? absl::StrCat(" of step ", step) : "", has),
               {{"checkpoint", step != 0 ? absl::StrCat(name, "/", step) : name}});
}

}  // namespace lorad::server
