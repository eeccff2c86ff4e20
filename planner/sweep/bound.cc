#include "planner/sweep/bound.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "planner/solve/integer_program.h"

namespace lorad::planner {
namespace {

constexpr int kThresholdsMax = 4;
// Ranges of l: each alone up to this many, then an eighth of them together.
constexpr int64_t kEighth = 8;
// Iterations of the simplex method; hundreds to thousands do where numbers are of like size.
constexpr int64_t kIterationsMax = 50'000;
// The error that the solver may make.
constexpr double kSolver = 1e-6;

using Term = IntegerProgram::Term;

class BoundProgram {
 public:
  // L: the kinds before `end`. Steps are counted in those of the longest, seconds in `unit_s`.
  BoundProgram(const SweepProblem& problem, size_t end, double unit_s)
      : problem_(problem), end_(end), unit_s_(unit_s), made_(problem.kinds().size()) {
    for (size_t k = 0; k < end_; ++k) members_ += Number(k);
    makespan_ = program_.AddVariable({.cost = 1, .integer = false});
    for (const SweepProblem::Degree& degree : problem_.degrees()) {
      if (degree.capacity_bytes < 0) continue;
      AddRange(degree, 0, 0);
      const int64_t most = MostAtATime(degree);
      for (int64_t low = 1; low <= most;) {
        const int64_t high = std::min(most, low + low / kEighth);
        AddRange(degree, low, high);
        low = high + 1;
      }
    }
    for (size_t k = 0; k < made_.size(); ++k) {
      const double steps = static_cast<double>(Number(k)) * Steps(k);
      program_.AddRow(steps, steps, made_[k]);
    }
    gpu_seconds_.push_back({makespan_, -static_cast<double>(problem_.gpus())});
    program_.AddRow(-IntegerProgram::kInfinity, 0, gpu_seconds_);
    member_seconds_.push_back({makespan_, -static_cast<double>(members_)});
    program_.AddRow(-IntegerProgram::kInfinity, 0, member_seconds_);
  }

  // 0 where the solver gives up, as it may on numbers of very different sizes.
  double Solve() const {
    const auto solution = Minimize(program_, {.iterations = kIterationsMax});
    if (!solution.ok() || solution->status != IntegerSolution::Status::kOptimal) return 0;
    return solution->objective * unit_s_ * (1 - kSolver);
  }

 private:
  int64_t Number(size_t k) const { return std::ssize(problem_.kinds()[k].configurations); }
  double Steps(size_t k) const {
    return static_cast<double>(problem_.kinds()[k].steps) /
           static_cast<double>(problem_.kinds()[0].steps);
  }
  // The fixed time of one iteration times the longest's steps.
  double Fixed(const SweepProblem::Degree& degree) const {
    return degree.fixed_s * static_cast<double>(problem_.kinds()[0].steps) / unit_s_;
  }
  double Work(const SweepProblem::Degree& degree, size_t k) const {
    return degree.work_s[k] / Steps(k) / unit_s_;
  }

  int64_t MostAtATime(const SweepProblem::Degree& degree) const {
    int64_t least = degree.capacity_bytes + 1;
    for (size_t k = 0; k < end_; ++k) least = std::min(least, problem_.kinds()[k].bytes);
    if (least > degree.capacity_bytes) return 0;
    return least == 0 ? members_ : std::min(members_, degree.capacity_bytes / least);
  }

  void AddRange(const SweepProblem::Degree& degree, int64_t low, int64_t high) {
    const int n = program_.AddVariable({.integer = false});
    const double gpus = degree.gpus, fixed = Fixed(degree);
    gpu_seconds_.push_back({n, gpus * fixed});
    std::vector<Term> memory = {{n, -1}}, least = {{n, -static_cast<double>(low)}},
                      most = {{n, -static_cast<double>(high)}};
    for (size_t k = 0; k < made_.size(); ++k) {
      const SweepProblem::Kind& kind = problem_.kinds()[k];
      if (kind.bytes > degree.capacity_bytes || (k < end_ && high == 0)) continue;
      const int y = program_.AddVariable({.integer = false});
      const double work = Work(degree, k);
      made_[k].push_back({y, 1});
      gpu_seconds_.push_back({y, gpus * work});
      member_seconds_.push_back({y, static_cast<double>(low) * work + (k < end_ ? fixed : 0)});
      if (k < end_) {
        least.push_back({y, 1});
        most.push_back({y, 1});
      }
      const double share = kind.bytes == 0 ? 0
                                           : static_cast<double>(kind.bytes) /
                                                 static_cast<double>(degree.capacity_bytes);
      if (share > 0) memory.push_back({y, share});
      if (share * static_cast<double>(Number(k)) < 1) {
        program_.AddRow(-IntegerProgram::kInfinity, 0,
                        {{y, 1}, {n, -static_cast<double>(Number(k))}});
      }
    }
    program_.AddRow(-IntegerProgram::kInfinity, 0, std::move(memory));
    if (high == 0) return;
    program_.AddRow(0, IntegerProgram::kInfinity, std::move(least));
    program_.AddRow(-IntegerProgram::kInfinity, 0, std::move(most));
  }

  const SweepProblem& problem_;
  const size_t end_;
  const double unit_s_;
  IntegerProgram program_;
  int makespan_ = 0;
  int64_t members_ = 0;
  std::vector<std::vector<Term>> made_;  // of each kind
  std::vector<Term> gpu_seconds_, member_seconds_;
};

// Whether GPUs that count rounds of tau_s can train within `seconds` those who must be in `rounds`
// of them in all and bring `work_s`, of which a round holds `round_work_s` at most.
bool RoundsFit(double seconds, int gpus, double tau_s, double rounds, double work_s,
               double round_work_s) {
  if (rounds > gpus * std::floor(seconds / tau_s)) return false;
  // Each GPU has an equal share of `total` rounds, or one more.
  const auto fits = [&](double total) {
    const double few = std::floor(total / gpus), more = total - few * gpus;
    const auto work = [&](double r) { return std::min(seconds - r * tau_s, r * round_work_s); };
    return (gpus - more) * work(few) + more * work(few + 1) >= work_s;
  };
  if (fits(rounds)) return true;  // as they do in any time that is long enough
  const double best = gpus * std::floor(seconds / (tau_s + round_work_s));
  for (int more = 0; more <= gpus; ++more) {
    if (fits(std::max(rounds, best + more))) return true;
  }
  return false;
}

// No less than `low`.
double RoundsBound(const SweepProblem& problem, int64_t steps, double low) {
  double share = 0, fixed_s = std::numeric_limits<double>::infinity();
  for (const SweepProblem::Degree& degree : problem.degrees()) {
    if (degree.capacity_bytes < 0) continue;
    share = std::max(share, static_cast<double>(degree.capacity_bytes) / degree.gpus);
    fixed_s = std::min(fixed_s, degree.fixed_s);
  }
  const double tau_s = static_cast<double>(steps) * fixed_s;
  double rounds = 0, work_s = 0, densest = 0;  // densest: work in all of a round's memory
  for (size_t k = 0; k < problem.kinds().size(); ++k) {
    const SweepProblem::Kind& kind = problem.kinds()[k];
    const auto passes = static_cast<double>(kind.steps / steps);
    if (passes < 1) break;  // steps fall
    double least = std::numeric_limits<double>::infinity();
    for (const SweepProblem::Degree& degree : problem.degrees()) {
      if (kind.bytes <= degree.capacity_bytes) {
        least = std::min(least, degree.gpus * degree.work_s[k]);
      }
    }
    const auto count = static_cast<double>(kind.configurations.size());
    if (kind.bytes == 0 || share == 0) continue;  // they take no room, and may work anywhere
    const double held = passes * static_cast<double>(kind.bytes) / share;
    rounds += count * held;
    work_s += count * least;
    densest = std::max(densest, least / held);
  }
  rounds = std::ceil(rounds * (1 - kSolver));
  if (rounds == 0) return low;
  const auto fit = [&](double seconds) {
    return RoundsFit(seconds, problem.gpus(), tau_s, rounds, work_s * (1 - kSolver), densest);
  };
  double high = low;
  while (!fit(high)) high *= 2;
  for (int i = 0; i < 40 && high > low; ++i) {
    const double middle = (low + high) / 2;
    (fit(middle) ? high : low) = middle;
  }
  return low;
}

}  // namespace

bool SweepBoundAffordable(const SweepProblem& problem) {
  return problem.kinds().size() * problem.degrees().size() <= kSweepBoundMax;
}

double SweepBoundSeconds(const SweepProblem& problem) {
  const double simple = problem.LowerBoundSeconds();
  double bound = simple;
  int thresholds = 0;
  const auto& kinds = problem.kinds();
  for (size_t end = 1; end <= kinds.size(); ++end) {
    if (end < kinds.size() && kinds[end].steps == kinds[end - 1].steps) continue;
    bound = RoundsBound(problem, kinds[end - 1].steps, bound);
    if (++thresholds > kThresholdsMax) continue;
    bound = std::max(bound, BoundProgram(problem, end, simple).Solve());
  }
  return bound;
}

}  // namespace lorad::planner
