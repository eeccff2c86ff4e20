// Quotas: what is asked of them, and how many of the waiting jobs a scheduling turn may place.
#include <map>

#include "absl/strings/str_cat.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {

// ---- requests ----

void Core::State::On(uint64_t request, const v1::SetQuotaRequest& content) {
  const std::string& label = content.quota().label();
  if (!quotas_.Has(label) && quotas_.size() >= kQuotasMax) {
    return turn_.Fail(
        request, LimitExceeded("TOO_MANY_QUOTAS", "quotas",
                               absl::StrCat("there are ", kQuotasMax,
                                            " quotas: delete some that nobody needs, or make one "
                                            "of each value by itself (KEY=*)")));
  }
  jobs_.ChangeQuotas([&] { quotas_.Set(content.quota()); });
  turn_.Answer(request, quotas_.View(label));
}

void Core::State::On(uint64_t request, const v1::ListQuotasRequest&) {
  turn_.Answer(request, quotas_.ViewAll());
}

void Core::State::On(uint64_t request, const v1::DeleteQuotaRequest& content) {
  if (!quotas_.Has(content.label())) return turn_.Fail(request, NotFound("quota", content.label()));
  jobs_.ChangeQuotas([&] { quotas_.Delete(content.label()); });
  turn_.Answer(request, std::monostate());
}

// ---- a scheduling turn ----

namespace {

// Jobs of which it cannot be said that a worker has room for one and not for the other.
std::string MemoryShapeOf(const planner::QueuedJob& job) {
  return absl::StrCat(job.base_model, "/", job.longest_sequence, "/", job.adapter->ToText());
}

}  // namespace

// A job for which no worker in service has room, even alone, will not be placed: it takes nothing
// of its quotas, else it would keep others from what is left, perhaps for days.
void Core::State::Ration(planner::ClusterView* view) {
  Ration(view, [&](const planner::QueuedJob& queued, Quotas::Allowance& allowance) {
    JobState& job = *jobs_.Find(queued.job);
    return allowance.Take(job.job().labels(), &job.why);
  });
}

std::string Core::State::Ration(planner::ClusterView* view, const JobState* newcomer) {
  std::string of_newcomer;
  Ration(view, [&](const planner::QueuedJob& queued, Quotas::Allowance& allowance) {
    const bool is_newcomer = queued.job.empty();
    const JobState& job = is_newcomer ? *newcomer : *jobs_.FindWhole(queued.job);
    std::string why;
    return allowance.Take(job.job().labels(), is_newcomer ? &of_newcomer : &why);
  });
  return of_newcomer;
}

void Core::State::Ration(
    planner::ClusterView* view,
    absl::FunctionRef<bool(const planner::QueuedJob& job, Quotas::Allowance& allowance)> take) {
  if (quotas_.empty()) return;
  std::map<std::string, bool> fits;
  const auto fits_any = [&](const planner::QueuedJob& job) {
    const auto [known, is_new] = fits.try_emplace(MemoryShapeOf(job));
    if (!is_new) return known->second;
    std::vector<planner::WorkerView> in_service;
    for (const planner::WorkerView& worker : view->workers) {
      const WorkerState& state = cluster_.At(worker.name);
      if (!cluster_.TakesJobs(state)) continue;
      in_service.push_back(worker);
      const int64_t tokens =
          worker.microbatch_tokens > 0 ? worker.microbatch_tokens : view->microbatch_tokens;
      known->second |= planner::FitsAlone(job, worker.device, worker.budget_bytes, tokens);
    }
    known->second =
        known->second || planner::PlaceAlone(job, in_service, view->microbatch_tokens).has_value();
    return known->second;
  };
  Quotas::Allowance allowance(quotas_);
  std::vector<bool> may(view->queue.size());
  const std::vector<size_t> order = planner::QueueOrder(*view);
  // First who is on its way to another group: it was counted when that was decided.
  for (const bool on_its_way : {true, false}) {
    for (const size_t i : order) {
      const planner::QueuedJob& queued = view->queue[i];
      if (queued.to.empty() == on_its_way) continue;
      may[i] = !fits_any(queued) || take(queued, allowance);
    }
  }
  size_t next = 0;
  std::erase_if(view->queue, [&](const planner::QueuedJob&) { return !may[next++]; });
}

}  // namespace lorad::server
