// Early exit in sweeps: which configurations need not be trained to their end (after ALTO,
// arXiv 2604.05426, docs/planner.md, Early exit: a warm-up of 5 % of the steps, the best
// quarter goes on; 72 to 83 % of the samples saved at equal best loss). A policy on top of the
// sweep's plan: what stops gives its place to the next configuration.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lorad::planner {

// Validation losses of one configuration, evenly spaced: entry i was measured after the share
// (i + 1) / evaluations of its steps. Those behind the last one measured are missing.
struct LossCurve {
  std::string name;
  int64_t samples = 0;      // of all its steps
  int64_t evaluations = 0;  // of all its steps
  std::vector<double> validation;
};

struct EarlyExitPolicy {
  double warmup_share = 0.05;  // of the steps, before anything but divergence is judged
  double keep_share = 0.25;    // of all configurations; at least one
  // Diverging: a loss that is not finite, or above `divergence` times the first.
  double divergence = 1.25;
  // Overfitting: so many evaluations in a row above the best by more than the tolerance.
  int64_t patience = 3;
  double tolerance = 0.01;
};

enum class ExitReason { kNone, kDiverging, kNotAmongBest, kOverfitting };

struct ExitDecision {
  enum class Kind {
    kGoOn,
    kPause,  // has made its warm-up; others have not
    kStop,
  };
  Kind kind = Kind::kGoOn;
  ExitReason reason = ExitReason::kNone;  // kStop
};

// One decision for each curve, from what was measured so far. Stateless: a curve that was stopped
// is given as it was then, and is stopped again. The best at the end of the warm-up are those
// with the lowest loss there, ties by position; diverging ones are not among them.
// REQUIRES evaluations >= 1, at least one evaluation within the warm-up.
std::vector<ExitDecision> DecideExits(const EarlyExitPolicy& policy,
                                      const std::vector<LossCurve>& curves);

// Evaluations after which the warm-up ends: the first at or behind its share.
int64_t WarmupEvaluations(const EarlyExitPolicy& policy, const LossCurve& curve);

struct EarlyExitResult {
  int64_t samples_total = 0;
  int64_t samples_used = 0;
  std::vector<int64_t> evaluations;  // made by each configuration
  std::vector<ExitReason> reasons;
  double best_loss = 0;       // lowest of any evaluation of any complete curve
  double best_loss_kept = 0;  // lowest of those that were made
  int best = -1;              // index of the configuration that has it
  int best_kept = -1;

  double saved_share() const {
    return 1 - static_cast<double>(samples_used) / static_cast<double>(samples_total);
  }
};

// The effect that the policy would have had on complete curves: it sees them evaluation by
// evaluation, all through the warm-up first, the rest behind it.
EarlyExitResult SimulateEarlyExit(const EarlyExitPolicy& policy,
                                  const std::vector<LossCurve>& curves);
// "saved 76.1 % of 384000 samples; best loss 1.0312 (r32-b4) of 1.0308; stopped: 90 not among the
// best, 3 diverging, 12 overfitting"
std::string ToText(const EarlyExitResult& result, const std::vector<LossCurve>& curves);

// Modelled curves, for want of recorded ones; the constants are ours and fitted to nothing. With
// u = ln(lr / lr*), lr* = 1.5e-4 sqrt(batch / 4), x the share of the steps that was made:
//
//   loss(x) = (f + (1.2 - 0.1 u^2 / (1 + u^2)) (1 + x / tau)^-0.8 + o max(0, x - y)^1.5) (1 + n)
//   f   = 1 + 0.03 u^2 + 0.004 ln(rank / 32)^2 + task, task in +-1 %
//   tau = 0.03 e^(-0.7 u): a low rate is slow
//   y   = e^-u / (1 + rank / 128), o = 0.25: a high rate and rank overfit early
//   n   = noise, normal, `noise` of the loss; the same seed draws the same curve below it
//
// and above u = 1.6 the loss grows by a fifth of itself at each evaluation behind the third. So
// slow configurations may end as the best though others lead at the warm-up: what the policy risks.
struct CurveModel {
  int64_t rank = 0;
  int64_t batch = 0;
  double learning_rate = 0;
};
std::vector<LossCurve> ModelCurves(const std::vector<CurveModel>& configurations, int64_t samples,
                                   int64_t evaluations, uint32_t seed, double noise = 0.003);

}  // namespace lorad::planner
