#include "server/validation/quota.h"

#include "absl/strings/str_cat.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"

namespace lorad::server {

std::string CheckQuotaLabel(const std::string& label) {
  const size_t equals = label.find('=');
  if (equals == std::string::npos) {
    return absl::StrCat("must be KEY=VALUE, or KEY=* for each value by itself, got '",
                        Quotable(label, kLabelKeyBytesMax), "'");
  }
  if (std::string wrong = CheckLabelKey(label.substr(0, equals)); !wrong.empty()) return wrong;
  return CheckVisibleText(label.substr(equals + 1), kLabelValueBytesMax);
}

std::vector<FieldViolation> CheckQuota(const v1::Quota& quota) {
  std::vector<FieldViolation> violations;
  if (std::string wrong = CheckQuotaLabel(quota.label()); !wrong.empty()) {
    violations.push_back({"quota.label", wrong});
  }
  const auto check = [&](const char* field, int64_t limit) {
    if (limit >= 0) return;
    violations.push_back(
        {field, absl::StrCat("must not be negative, got ", limit, " (unset: no limit)")});
  };
  check("quota.running_jobs", quota.running_jobs());
  check("quota.queued_jobs", quota.queued_jobs());
  check("quota.stored_bytes", quota.stored_bytes());
  return violations;
}

}  // namespace lorad::server
