#include "planner/sweep/early_exit.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

bool Diverges(const EarlyExitPolicy& policy, const LossCurve& curve) {
  return std::any_of(curve.validation.begin(), curve.validation.end(), [&](double loss) {
    return !std::isfinite(loss) || loss > policy.divergence * curve.validation.front();
  });
}

bool Overfits(const EarlyExitPolicy& policy, const LossCurve& curve) {
  double best = std::numeric_limits<double>::infinity();
  int64_t above = 0;
  for (double loss : curve.validation) {
    best = std::min(best, loss);
    above = loss > best * (1 + policy.tolerance) ? above + 1 : 0;
    if (above >= policy.patience) return true;
  }
  return false;
}

// Which of the curves, all behind their warm-up or diverging, go on.
std::vector<bool> Best(const EarlyExitPolicy& policy, const std::vector<LossCurve>& curves,
                       const std::vector<bool>& diverging) {
  std::vector<size_t> order;
  for (size_t i = 0; i < curves.size(); ++i) {
    if (!diverging[i]) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    const auto at_warmup = [&](size_t i) {
      return curves[i].validation[WarmupEvaluations(policy, curves[i]) - 1];
    };
    return at_warmup(a) < at_warmup(b);
  });
  const auto kept = static_cast<size_t>(
      std::max(1.0, std::ceil(policy.keep_share * static_cast<double>(curves.size()) - 1e-9)));
  std::vector<bool> best(curves.size(), false);
  for (size_t i = 0; i < std::min(kept, order.size()); ++i) best[order[i]] = true;
  return best;
}

// Uniform in [0, 1), the same everywhere.
double Uniform(std::mt19937& random) { return static_cast<double>(random()) / 4294967296.0; }

double Normal(std::mt19937& random) {
  const double radius = std::sqrt(-2 * std::log(1 - Uniform(random)));
  return radius * std::cos(2 * std::acos(-1.0) * Uniform(random));
}

}  // namespace

int64_t WarmupEvaluations(const EarlyExitPolicy& policy, const LossCurve& curve) {
  const double share = policy.warmup_share * static_cast<double>(curve.evaluations);
  return std::clamp<int64_t>(static_cast<int64_t>(std::ceil(share - 1e-9)), 1, curve.evaluations);
}

std::vector<ExitDecision> DecideExits(const EarlyExitPolicy& policy,
                                      const std::vector<LossCurve>& curves) {
  std::vector<bool> diverging;
  bool all_warm = true;
  for (const LossCurve& curve : curves) {
    assert(curve.evaluations >= 1);
    diverging.push_back(Diverges(policy, curve));
    all_warm = all_warm && (diverging.back() ||
                            std::ssize(curve.validation) >= WarmupEvaluations(policy, curve));
  }
  const std::vector<bool> best =
      all_warm ? Best(policy, curves, diverging) : std::vector<bool>(curves.size(), true);
  std::vector<ExitDecision> decisions(curves.size());
  for (size_t i = 0; i < curves.size(); ++i) {
    using Kind = ExitDecision::Kind;
    const bool warm = std::ssize(curves[i].validation) >= WarmupEvaluations(policy, curves[i]);
    if (diverging[i]) {
      decisions[i] = {Kind::kStop, ExitReason::kDiverging};
    } else if (!best[i]) {
      decisions[i] = {Kind::kStop, ExitReason::kNotAmongBest};
    } else if (warm && Overfits(policy, curves[i])) {
      decisions[i] = {Kind::kStop, ExitReason::kOverfitting};
    } else if (warm && !all_warm) {
      decisions[i].kind = Kind::kPause;
    }
  }
  return decisions;
}

EarlyExitResult SimulateEarlyExit(const EarlyExitPolicy& policy,
                                  const std::vector<LossCurve>& curves) {
  EarlyExitResult result;
  std::vector<LossCurve> seen = curves;
  for (LossCurve& curve : seen) curve.validation.clear();
  result.reasons.assign(curves.size(), ExitReason::kNone);
  for (bool any = true; any;) {
    any = false;
    const std::vector<ExitDecision> decisions = DecideExits(policy, seen);
    for (size_t i = 0; i < curves.size(); ++i) {
      result.reasons[i] = decisions[i].reason;
      if (decisions[i].kind != ExitDecision::Kind::kGoOn ||
          seen[i].validation.size() == curves[i].validation.size()) {
        continue;
      }
      seen[i].validation.push_back(curves[i].validation[seen[i].validation.size()]);
      any = true;
    }
  }
  result.best_loss = result.best_loss_kept = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < curves.size(); ++i) {
    const auto made = std::ssize(seen[i].validation);
    result.evaluations.push_back(made);
    result.samples_total += curves[i].samples;
    result.samples_used += curves[i].samples * made / curves[i].evaluations;
    for (int64_t e = 0; e < std::ssize(curves[i].validation); ++e) {
      const double loss = curves[i].validation[e];
      if (loss < result.best_loss) {
        result.best_loss = loss;
        result.best = static_cast<int>(i);
      }
      if (e < made && loss < result.best_loss_kept) {
        result.best_loss_kept = loss;
        result.best_kept = static_cast<int>(i);
      }
    }
  }
  return result;
}

std::string ToText(const EarlyExitResult& result, const std::vector<LossCurve>& curves) {
  const auto stopped = [&](ExitReason reason) {
    return std::count(result.reasons.begin(), result.reasons.end(), reason);
  };
  std::string text = absl::StrFormat("saved %.1f %% of %d samples", 100 * result.saved_share(),
                                     result.samples_total);
  if (result.best_kept >= 0) {
    absl::StrAppendFormat(&text, "; best loss %.4f (%s) of %.4f", result.best_loss_kept,
                          curves[result.best_kept].name, result.best_loss);
  }
  absl::StrAppend(&text, "; stopped: ", stopped(ExitReason::kNotAmongBest), " not among the best, ",
                  stopped(ExitReason::kDiverging), " diverging, ",
                  stopped(ExitReason::kOverfitting), " overfitting");
  return text;
}

std::vector<LossCurve> ModelCurves(const std::vector<CurveModel>& configurations, int64_t samples,
                                   int64_t evaluations, uint32_t seed, double noise) {
  std::mt19937 random(seed);
  std::vector<LossCurve> curves;
  for (const CurveModel& c : configurations) {
    LossCurve& curve = curves.emplace_back();
    curve.name = absl::StrFormat("r%d-b%d-lr%.0e", c.rank, c.batch, c.learning_rate);
    curve.samples = samples;
    curve.evaluations = evaluations;
    const double best_rate = 1.5e-4 * std::sqrt(static_cast<double>(c.batch) / 4);
    const double u = std::log(c.learning_rate / best_rate);
    const double rank = std::log(static_cast<double>(c.rank) / 32);
    const double task = 0.02 * Uniform(random) - 0.01;
    const double floor = 1 + 0.03 * u * u + 0.004 * rank * rank + task;
    const double height = 1.2 - 0.1 * u * u / (1 + u * u);
    const double tau = 0.03 * std::exp(-0.7 * u);
    const double rises_at = std::exp(-u) / (1 + static_cast<double>(c.rank) / 128);
    double grown = 1;
    for (int64_t e = 1; e <= evaluations; ++e) {
      const double x = static_cast<double>(e) / static_cast<double>(evaluations);
      if (u > 1.6 && e > 3) grown *= 1.2;
      const double loss = floor + height * std::pow(1 + x / tau, -0.8) +
                          0.25 * std::pow(std::max(0.0, x - rises_at), 1.5);
      curve.validation.push_back(loss * grown * (1 + noise * Normal(random)));
    }
  }
  return curves;
}

}  // namespace lorad::planner
