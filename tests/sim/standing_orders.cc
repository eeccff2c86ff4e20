#include "tests/sim/standing_orders.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"

namespace lorad::sim {
namespace {

using namespace server;  // NOLINT: the orders are given to the server

// What the request takes back, or changes; empty: nothing of the kind.
std::string Revoked(const Request& request) {
  if (const auto* resume = std::get_if<v1::ResumeJobRequest>(&request)) {
    return "job " + resume->name();
  }
  if (const auto* undrain = std::get_if<v1::UndrainWorkerRequest>(&request)) {
    return "worker " + undrain->name();
  }
  if (const auto* set = std::get_if<v1::SetQuotaRequest>(&request)) {
    return "quota " + set->quota().label();
  }
  if (const auto* gone = std::get_if<v1::DeleteQuotaRequest>(&request)) {
    return "quota " + gone->label();
  }
  return "";
}

}  // namespace

void StandingOrders::Asked(uint64_t number, const Request& request) {
  questions_[number] = request;
  const std::string revoked = Revoked(request);
  if (revoked.empty()) return;
  open_.insert(revoked);
  if (const auto* resume = std::get_if<v1::ResumeJobRequest>(&request)) {
    paused_.erase(resume->name());
  } else if (const auto* undrain = std::get_if<v1::UndrainWorkerRequest>(&request)) {
    drained_.erase(undrain->name());
  } else {
    limits_.erase(revoked.substr(std::string("quota ").size()));
  }
}

void StandingOrders::Answered(uint64_t number, const absl::StatusOr<ReplyValue>& value) {
  const auto question = questions_.extract(number);
  if (question.empty()) return;
  const Request& request = question.mapped();
  const std::string revoked = Revoked(request);
  if (!revoked.empty()) open_.erase(open_.find(revoked));
  if (value.ok()) Ordered(request, *value);
}

// An order stands if nothing that takes it back was under way when it was acknowledged.
void StandingOrders::Ordered(const Request& request, const ReplyValue& value) {
  if (const auto* pause = std::get_if<v1::PauseJobRequest>(&request)) {
    if (open_.contains("job " + pause->name())) return;
    paused_[pause->name()] = std::get<v1::Job>(value).revision();
  } else if (const auto* finish = std::get_if<v1::FinishJobRequest>(&request)) {
    const auto& job = std::get<v1::Job>(value);
    if (job.finish_step() > 0) finishing_[finish->name()] = {job.revision(), job.finish_step()};
  } else if (const auto* drain = std::get_if<v1::DrainWorkerRequest>(&request)) {
    if (!open_.contains("worker " + drain->name())) drained_.insert(drain->name());
  } else if (const auto* set = std::get_if<v1::SetQuotaRequest>(&request)) {
    const v1::Quota& quota = set->quota();
    // "team=*" is of each value by itself that has no quota of its own: it is not followed here.
    const bool is_of_all = quota.label().ends_with("=*");
    if (is_of_all || open_.contains("quota " + quota.label())) return;
    // What was told so far is of the turns before this one.
    if (quota.has_running_jobs()) limits_[quota.label()].jobs = quota.running_jobs();
  }
}

void StandingOrders::CoordinatorDied() {
  questions_.clear();
  open_.clear();
}

void StandingOrders::CheckForming(const std::string& worker) const {
  INFO("worker " << worker << " is drained, and gets a group");
  REQUIRE(!drained_.contains(worker));
}

void StandingOrders::Told(const v1::Job& job) {
  if (IsPlaced(job.state())) {
    std::set<std::string>& labels = placed_[job.name()];
    for (const auto& [key, value] : job.labels()) labels.insert(absl::StrCat(key, "=", value));
  } else {
    placed_.erase(job.name());
  }
  // It trains no step beyond, and does not forget it. One that was paused before stays so while its
  // last checkpoint is being written.
  if (job.finish_step() > 0) {
    INFO("it is to finish: " << job.ShortDebugString());
    REQUIRE(job.step() <= job.finish_step());
    if (job.state() == v1::Job::PAUSED) REQUIRE_FALSE(goes_on_.contains(job.name()));
    if (job.state() != v1::Job::PAUSED && job.state() != v1::Job::PAUSING) {
      goes_on_.insert(job.name());
    }
  }
  const auto finishing = finishing_.find(job.name());
  if (finishing != finishing_.end() && job.revision() > finishing->second.revision) {
    INFO("it was asked to finish at step " << finishing->second.step
                                           << ", and forgets it: " << job.ShortDebugString());
    REQUIRE(job.finish_step() >= finishing->second.step);
  }
  const auto paused = paused_.find(job.name());
  if (paused == paused_.end() || job.revision() <= paused->second) return;
  if (job.state() == v1::Job::PAUSING || job.state() == v1::Job::PAUSED) return;
  INFO("it is paused, and nobody has resumed it: " << job.ShortDebugString());
  // Its last step came first; or it was to be cancelled, or to finish, which trains it up to there.
  REQUIRE((job.state() == v1::Job::FINALIZING || job.state() == v1::Job::CANCELLING ||
           job.finish_step() > 0 || !IsLive(job.state())));
  paused_.erase(paused);
}

void StandingOrders::ToldDeleted(const std::string& job) {
  placed_.erase(job);
  paused_.erase(job);
  finishing_.erase(job);
  goes_on_.erase(job);
}

int64_t StandingOrders::Running(const std::string& label) const {
  return std::ranges::count_if(placed_,
                               [&](const auto& entry) { return entry.second.contains(label); });
}

// Nobody is evicted by a quota that was lowered, so more may run than it says, but not more than
// before.
void StandingOrders::CheckQuotas() {
  for (auto& [label, limit] : limits_) {
    const int64_t running = Running(label);
    INFO("quota " << label << ": " << running << " run, " << limit.before << " did, of "
                  << limit.jobs);
    REQUIRE(running <= std::max(limit.jobs, limit.before));
    limit.before = running;
  }
}

}  // namespace lorad::sim
