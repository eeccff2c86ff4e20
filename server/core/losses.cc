#include "server/core/losses.h"

#include <algorithm>

namespace lorad::server {
namespace {

constexpr int32_t kSuspectFrom = 2;  // losses: one may happen to anybody

}  // namespace

bool IsSuspect(int32_t losses) { return losses >= kSuspectFrom; }

int32_t CompanyAfterLoss(int32_t losses, int32_t company_max, int32_t suspects) {
  if (!IsSuspect(losses)) return 0;
  const int32_t before = company_max > 0 ? std::min(company_max, suspects) : suspects;
  return std::max(before / 2, 1);
}

bool AloneAfterLoss(int32_t losses, int32_t suspects) { return IsSuspect(losses) && suspects == 1; }

bool IsToBlame(int32_t losses, int32_t losses_max, int64_t jobs_of_group) {
  return jobs_of_group == 1 && losses >= losses_max;
}

}  // namespace lorad::server
