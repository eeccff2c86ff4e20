// Quotas: how much the jobs of a label may have at once, and how much they have.
//
// A quota's label is "team=math", or "team=*" for each value by itself that has no quota of its
// own. A job is held to those of all of its labels: HeldBy names them by their values, "team=math"
// in both cases. The use of every label is kept as it changes, whether it has a quota or not, so a
// new quota knows it at once.
//
// Invariants: a quota stands under its own label, and its limits are not negative; no use is
// negative, and none is kept that is nothing. That the use is that of the jobs is for JobTable,
// which reports every change.
//
// It knows the Turn alone. Threads: the core's one. Errors of Load: DATA_LOSS (STORE_CORRUPT).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "lorad/v1/cluster.pb.h"
#include "lorad/v1/jobs.pb.h"
#include "server/core/events/turn.h"

namespace lorad::server {

// The share of a job, or of all jobs of a label, in what quotas limit.
struct QuotaUse {
  int64_t running_jobs = 0;
  int64_t queued_jobs = 0;
  int64_t stored_bytes = 0;

  bool operator==(const QuotaUse&) const = default;
};

class Quotas {
 public:
  using Labels = google::protobuf::Map<std::string, std::string>;

  explicit Quotas(Turn& turn) : turn_(turn) {}
  absl::Status Load(const std::vector<std::pair<std::string, std::string>>& stored);

  // ---- quotas ----
  bool empty() const { return quotas_.empty(); }
  bool Has(const std::string& label) const { return quotas_.contains(label); }
  size_t size() const { return quotas_.size(); }
  // REQUIRES: its label and its limits are good (validation/quota.h). Its use is not looked at.
  void Set(const v1::Quota& quota);
  void Delete(const std::string& label);
  // With their use.
  v1::Quota View(const std::string& label) const;
  v1::ListQuotasResponse ViewAll() const;

  // ---- use, as JobTable reports it ----
  void Add(const Labels& labels, const QuotaUse& use) { Change(labels, use, 1); }
  void Take(const Labels& labels, const QuotaUse& use) { Change(labels, use, -1); }
  QuotaUse UseOf(const std::string& label) const;
  const std::map<std::string, QuotaUse>& uses() const { return uses_; }

  // ---- limits ----
  // The labels of a job, by their values, of which a quota limits the running jobs; in order.
  std::vector<std::string> HeldBy(const Labels& labels) const;
  // Whether more jobs of some of these labels run than may: a quota was lowered.
  bool ArePassed(const Labels& labels) const;
  // OK, or RESOURCE_EXHAUSTED (QUOTA_EXCEEDED) with every limit that is in the way:
  // of another job that stores,
  absl::Status CheckCreate(const Labels& labels) const;
  // of one that is queued again,
  absl::Status CheckQueue(const Labels& labels) const;
  // of a job with that use which gets other labels: of what it adds to those it did not have.
  absl::Status CheckLabels(const Labels& before, const Labels& after, const QuotaUse& use) const;

  // The running jobs that every quota has left, for one scheduling turn.
  class Allowance {
   public:
    explicit Allowance(const Quotas& quotas) : quotas_(quotas) {}
    // Takes one of each of the job's quotas; else says which of them has none left.
    bool Take(const Labels& labels, std::string* why);

   private:
    const Quotas& quotas_;
    std::map<std::string, int64_t> taken_;
  };

  // OK where the invariants hold, else INTERNAL.
  absl::Status CheckInvariants() const;

 private:
  // The quota of "team=math": its own, or that of "team=*"; null where it has none.
  const v1::Quota* Find(const std::string& key, const std::string& value) const;
  void Change(const Labels& labels, const QuotaUse& use, int sign);

  Turn& turn_;
  std::map<std::string, v1::Quota> quotas_;  // by label; without their use
  std::map<std::string, QuotaUse> uses_;     // by "team=math"
};

}  // namespace lorad::server
