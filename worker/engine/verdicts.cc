#include "worker/engine/verdicts.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace lorad::worker {
namespace {

double ClipFactor(double max_norm, double norm) {
  return max_norm > 0 ? std::min(1.0, max_norm / (norm + 1e-6)) : 1.0;
}

bool Any(std::span<const v1::NormShare> shares, v1::NormShare::State state) {
  return std::any_of(shares.begin(), shares.end(),
                     [state](const v1::NormShare& share) { return share.state() == state; });
}

}  // namespace

v1::Verdict Decide(std::span<const v1::NormShare> shares, double max_grad_norm,
                   const std::function<double(std::span<const double>)>& fold) {
  v1::Verdict verdict;
  verdict.set_job(shares.front().job());
  verdict.set_step(shares.front().step());
  if (Any(shares, v1::NormShare::NO_SLOT)) {
    verdict.set_outcome(v1::Verdict::NO_SLOT);
    return verdict;
  }
  std::vector<double> sums;
  for (const v1::NormShare& share : shares) {
    sums.insert(sums.end(), share.sums().begin(), share.sums().end());
  }
  const double norm = std::sqrt(fold(sums));
  const bool finite = !Any(shares, v1::NormShare::NOT_FINITE) && std::isfinite(norm);
  verdict.set_outcome(finite ? v1::Verdict::STEP : v1::Verdict::NOT_FINITE);
  if (!finite) return verdict;
  verdict.set_norm(norm);
  verdict.set_clip_factor(ClipFactor(max_grad_norm, norm));
  return verdict;
}

}  // namespace lorad::worker
