#include "server/core/rules/losses.h"

#include <algorithm>

namespace lorad::server {
namespace {

constexpr int32_t kSuspectFrom = 2;  // losses: one may happen to anybody

}  // namespace

bool IsSuspect(int32_t losses) { return losses >= kSuspectFrom; }

int32_t HalfOf(int32_t company_max, int32_t jobs) {
  const int32_t before = company_max > 0 ? std::min(company_max, jobs) : jobs;
  return std::max(before / 2, 1);
}

int32_t CompanyAfterLoss(int32_t losses, int32_t company_max, int32_t suspects) {
  if (!IsSuspect(losses)) return 0;
  return HalfOf(company_max, suspects);
}

bool AloneAfterLoss(int32_t losses, int32_t suspects) { return IsSuspect(losses) && suspects == 1; }

// For a job that was alone from the beginning, all losses but the first and the last are followed
// by a pause.
bool IsToBlame(int32_t losses, int32_t redone, int32_t losses_alone, int32_t losses_max,
               int64_t jobs_of_group) {
  if (jobs_of_group != 1) return false;
  return redone / kRedoneFactor >= losses_max ||
         (losses - redone >= losses_max && losses_alone >= losses_max - kSuspectFrom);
}

}  // namespace lorad::server
