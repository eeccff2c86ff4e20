#include "server/core/jobs/quotas.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/catalog/stored.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr int kUsesShown = 100;  // of a quota of each value

std::string LabelOf(const std::string& key, const std::string& value) {
  return absl::StrCat(key, "=", value);
}

bool IsOfEachValue(const std::string& label) { return label.substr(label.find('=')) == "=*"; }

// How jobs stand to a limit of them.
enum class Jobs { kRun, kAreQueued };

using Violations = std::vector<std::pair<std::string, std::string>>;

constexpr char kRunningJobs[] = " running_jobs";
constexpr char kQueuedJobs[] = " queued_jobs";
constexpr char kStoredBytes[] = " stored_bytes";

std::string JobsText(const std::string& label, int64_t jobs, int64_t limit, Jobs what) {
  const bool one = jobs == 1;
  const char* verb = what == Jobs::kRun ? (one ? "runs" : "run") : one ? "is queued" : "are queued";
  return absl::StrCat("quota ", label, ": ", jobs, " of ", limit,
                      limit == 1 && one ? " job " : " jobs ", verb);
}

void AddJobs(const std::string& label, int64_t jobs, int64_t limit, Jobs what,
             Violations* violations) {
  if (jobs < limit) return;
  const char* name = what == Jobs::kRun ? kRunningJobs : kQueuedJobs;
  violations->emplace_back(absl::StrCat(label, name), JobsText(label, jobs, limit, what));
}

// What helps against limits of these kinds.
std::string RemedyOf(const Violations& violations) {
  const auto any = [&](std::string_view kind) {
    return std::ranges::any_of(violations,
                               [&](const auto& entry) { return entry.first.ends_with(kind); });
  };
  std::vector<std::string> ways;
  if (any(kQueuedJobs)) ways.push_back("wait until some of them run or end, pause or cancel some");
  if (any(kRunningJobs)) ways.push_back("wait until some that run end, pause or cancel some");
  if (any(kStoredBytes)) ways.push_back("delete ended jobs that nobody needs (lora rm)");
  return absl::StrJoin(ways, "; ");
}

absl::Status Answer(const Violations& violations) {
  if (violations.empty()) return absl::OkStatus();
  return QuotaExceeded(violations, absl::StrCat(RemedyOf(violations),
                                                ", or have the limit raised (lora quota set)"));
}

}  // namespace

absl::Status Quotas::Load(const std::vector<std::pair<std::string, std::string>>& stored) {
  for (const auto& entry : stored) {
    records::QuotaRecord record;
    if (auto status = ParseStored(kQuotaKind, entry, &record); !status.ok()) return status;
    quotas_[entry.first] = std::move(*record.mutable_quota());
  }
  return absl::OkStatus();
}

// ---- quotas ----

void Quotas::Set(const v1::Quota& quota) {
  records::QuotaRecord record;
  *record.mutable_quota() = quota;
  record.mutable_quota()->clear_use();
  turn_.Put(storage::PutRecord(kQuotaKind, quota.label(), record.SerializeAsString()));
  quotas_[quota.label()] = std::move(*record.mutable_quota());
}

void Quotas::Delete(const std::string& label) {
  turn_.Put(storage::DeleteRecord(kQuotaKind, label));
  quotas_.erase(label);
}

v1::Quota Quotas::View(const std::string& label) const {
  v1::Quota quota = quotas_.at(label);
  const auto show = [&](const std::string& of, const QuotaUse& use) {
    v1::Quota::Use& shown = *quota.add_use();
    shown.set_label(of);
    shown.set_running_jobs(use.running_jobs);
    shown.set_queued_jobs(use.queued_jobs);
    shown.set_stored_bytes(use.stored_bytes);
  };
  if (!IsOfEachValue(label)) {
    show(label, UseOf(label));
    return quota;
  }
  const std::string key = label.substr(0, label.size() - 1);  // "team="
  for (auto use = uses_.lower_bound(key); use != uses_.end(); ++use) {
    if (!use->first.starts_with(key) || quota.use_size() == kUsesShown) break;
    // The quota that a value has of its own shows it.
    if (use->first == label || !quotas_.contains(use->first)) show(use->first, use->second);
  }
  return quota;
}

v1::ListQuotasResponse Quotas::ViewAll() const {
  v1::ListQuotasResponse response;
  for (const auto& [label, quota] : quotas_) *response.add_quotas() = View(label);
  return response;
}

const v1::Quota* Quotas::Find(const std::string& key, const std::string& value) const {
  if (quotas_.empty()) return nullptr;
  auto found = quotas_.find(LabelOf(key, value));
  if (found == quotas_.end()) found = quotas_.find(LabelOf(key, "*"));
  return found == quotas_.end() ? nullptr : &found->second;
}

// ---- use ----

void Quotas::Change(const Labels& labels, const QuotaUse& use, int sign) {
  if (use == QuotaUse()) return;
  for (const auto& [key, value] : labels) {
    const std::string label = LabelOf(key, value);
    QuotaUse& all = uses_[label];
    all.running_jobs += sign * use.running_jobs;
    all.queued_jobs += sign * use.queued_jobs;
    all.stored_bytes += sign * use.stored_bytes;
    if (all == QuotaUse()) uses_.erase(label);
  }
}

QuotaUse Quotas::UseOf(const std::string& label) const {
  const auto found = uses_.find(label);
  return found == uses_.end() ? QuotaUse() : found->second;
}

// ---- limits ----

std::vector<std::string> Quotas::HeldBy(const Labels& labels) const {
  std::map<std::string, std::string> held;  // in order: a map of protobuf's has none
  for (const auto& [key, value] : labels) {
    const v1::Quota* quota = Find(key, value);
    if (quota && quota->has_running_jobs()) held[LabelOf(key, value)];
  }
  std::vector<std::string> names;
  for (const auto& [label, nothing] : held) names.push_back(label);
  return names;
}

bool Quotas::ArePassed(const Labels& labels) const {
  return std::ranges::any_of(labels, [&](const auto& label) {
    const v1::Quota* quota = Find(label.first, label.second);
    return quota && quota->has_running_jobs() &&
           UseOf(LabelOf(label.first, label.second)).running_jobs > quota->running_jobs();
  });
}

absl::Status Quotas::CheckCreate(const Labels& labels) const {
  Violations violations;
  for (const auto& [key, value] :
       std::map<std::string, std::string>(labels.begin(), labels.end())) {
    const v1::Quota* quota = Find(key, value);
    if (!quota) continue;
    const std::string label = LabelOf(key, value);
    const QuotaUse use = UseOf(label);
    if (quota->has_queued_jobs()) {
      AddJobs(label, use.queued_jobs, quota->queued_jobs(), Jobs::kAreQueued, &violations);
    }
    if (quota->has_stored_bytes() && use.stored_bytes >= quota->stored_bytes()) {
      violations.emplace_back(
          absl::StrCat(label, kStoredBytes),
          absl::StrCat("quota ", label, ": ", use.stored_bytes, " of ", quota->stored_bytes(),
                       " bytes are stored in checkpoints"));
    }
  }
  return Answer(violations);
}

absl::Status Quotas::CheckQueue(const Labels& labels) const {
  QuotaUse use;
  use.queued_jobs = 1;
  return CheckLabels({}, labels, use);
}

absl::Status Quotas::CheckLabels(const Labels& before, const Labels& after,
                                 const QuotaUse& use) const {
  Violations violations;
  for (const auto& [key, value] : std::map<std::string, std::string>(after.begin(), after.end())) {
    const auto had = before.find(key);
    const v1::Quota* quota = Find(key, value);
    if (!quota || (had != before.end() && had->second == value)) continue;
    const std::string label = LabelOf(key, value);
    const QuotaUse of_all = UseOf(label);
    if (use.queued_jobs > 0 && quota->has_queued_jobs()) {
      AddJobs(label, of_all.queued_jobs, quota->queued_jobs(), Jobs::kAreQueued, &violations);
    }
    if (use.running_jobs > 0 && quota->has_running_jobs()) {
      AddJobs(label, of_all.running_jobs, quota->running_jobs(), Jobs::kRun, &violations);
    }
  }
  return Answer(violations);
}

bool Quotas::Allowance::Take(const Labels& labels, std::string* why) {
  const std::vector<std::string> held = quotas_.HeldBy(labels);
  for (const std::string& label : held) {
    const size_t equals = label.find('=');
    const v1::Quota& quota = *quotas_.Find(label.substr(0, equals), label.substr(equals + 1));
    const int64_t running = quotas_.UseOf(label).running_jobs;
    const auto taken = taken_.find(label);
    const int64_t before = taken == taken_.end() ? 0 : taken->second;
    if (running + before < quota.running_jobs()) continue;
    *why = JobsText(label, running, quota.running_jobs(), Jobs::kRun);
    if (before == 1) absl::StrAppend(why, ", and another is to run before it");
    if (before > 1) absl::StrAppend(why, ", and ", before, " others are to run before it");
    return false;
  }
  for (const std::string& label : held) ++taken_[label];
  return true;
}

// ---- invariants ----

absl::Status Quotas::CheckInvariants() const {
  const auto broken = [](const std::string& what) {
    return absl::InternalError("quotas: " + what);
  };
  for (const auto& [label, quota] : quotas_) {
    if (quota.label() != label || quota.use_size() > 0) return broken(label + " is another's");
    if (quota.running_jobs() < 0 || quota.queued_jobs() < 0 || quota.stored_bytes() < 0) {
      return broken(label + " has a limit below nothing");
    }
  }
  for (const auto& [label, use] : uses_) {
    if (use == QuotaUse()) return broken(label + " is kept, and has nothing");
    if (use.running_jobs < 0 || use.queued_jobs < 0 || use.stored_bytes < 0) {
      return broken(label + " has less than nothing");
    }
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
