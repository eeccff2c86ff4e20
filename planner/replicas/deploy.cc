#include "planner/replicas/deploy.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/replicas/balance.h"

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;
constexpr size_t kCutsMax = 48;
constexpr size_t kSetsToStartFrom = 64;

// The least cost of a replica of each candidate.
struct Costs {
  std::vector<std::vector<double>> sequence_ms;  // [candidate][bucket]; infinite: does not fit
  std::vector<double> filling_ms;                // of its pipeline, if it trains anything
  std::vector<double> sequences;                 // whole, rounded up
};

Costs CostsOf(const DeployProblem& problem) {
  Costs costs;
  for (double expected : problem.sequences) {
    costs.sequences.push_back(std::ceil(expected - 1e-9));
  }
  for (const Layout& layout : problem.candidates) {
    costs.sequence_ms.emplace_back();
    double least = kInfinity;
    for (size_t j = 0; j < problem.lengths.size(); ++j) {
      const int64_t fit = layout.Fit(problem.lengths[j]);
      const double each = layout.SequenceMs(problem.lengths[j]);
      const double constant = layout.stage_ms.constant_ms;
      costs.sequence_ms.back().push_back(fit > 0 ? each + constant / static_cast<double>(fit)
                                                 : kInfinity);
      if (fit > 0 && costs.sequences[j] > 0) least = std::min(least, constant + each);
    }
    costs.filling_ms.push_back(std::isfinite(least) ? (layout.pipeline_stages - 1) * least : 0);
  }
  return costs;
}

// T sum_i W_i p_i >= work + sum_i W_i p_i filling_i, for the layouts of one set.
struct Cut {
  std::vector<double> weights;  // W_i, by place in the set
  double work = 0;
};

// One set of layouts, each with one replica or more.
struct LayoutSet {
  std::vector<int> members;  // candidates, most GPUs first
  double bound_ms = 0;       // with all N GPUs
  std::vector<Cut> cuts;
};

class Planner {
 public:
  Planner(const DeployProblem& problem, const DeployOptions& options, bool compares)
      : problem_(problem), options_(options), compares_(compares), costs_(CostsOf(problem)) {
    best_.step_ms = kInfinity;
  }

  // The plans to compare, fastest first.
  std::vector<std::vector<int64_t>> Compared() {
    std::stable_sort(compared_.begin(), compared_.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<std::vector<int64_t>> plans;
    for (const auto& [ms, replicas] : compared_) {
      const bool known = std::find(plans.begin(), plans.end(), replicas) != plans.end();
      if (ms >= Threshold() || static_cast<int>(plans.size()) >= options_.compared) break;
      if (!known) plans.push_back(replicas);
    }
    return plans;
  }

  absl::StatusOr<Deployment> Run() {
    MakeSets();
    if (sets_.empty()) {
      return absl::FailedPreconditionError(absl::StrCat("no layouts on ", problem_.gpus,
                                                        " GPUs hold every bucket up to ",
                                                        problem_.lengths.back(), " tokens"));
    }
    for (size_t k = 0; k < std::min(sets_.size(), kSetsToStartFrom); ++k) {
      if (sets_[k].bound_ms < Threshold()) StartFrom(&sets_[k]);
    }
    for (LayoutSet& set : sets_) {
      if (set.bound_ms >= Threshold()) continue;
      std::vector<int64_t> counts(set.members.size(), 0);
      Enumerate(&set, 0, problem_.gpus, &counts);
    }
    return Result();
  }

 private:
  // Plans that are no faster are of no interest: as the best one, or among those compared.
  double Threshold() const {
    const double share = compares_ ? 1 + options_.compared_within : 1 - options_.gap;
    return best_.step_ms * share * (1 - kRounding);
  }

  // Every set of layouts that fits on the GPUs and holds every bucket, the fastest bound first.
  void MakeSets() {
    const int size = static_cast<int>(problem_.candidates.size());
    for (unsigned bits = 1; bits < (1u << size); ++bits) {
      LayoutSet set;
      int64_t gpus = 0;
      for (int i = 0; i < size; ++i) {
        if (!(bits & (1u << i))) continue;
        set.members.push_back(i);
        gpus += problem_.candidates[i].gpus();
      }
      if (gpus > problem_.gpus) continue;
      std::stable_sort(set.members.begin(), set.members.end(), [&](int a, int b) {
        return problem_.candidates[a].gpus() > problem_.candidates[b].gpus();
      });
      std::vector<double> weights;
      for (int i : set.members) weights.push_back(problem_.candidates[i].gpus());
      AddCut(&set, weights);
      if (!std::isfinite(set.cuts[0].work)) continue;
      set.bound_ms = set.cuts[0].work / static_cast<double>(problem_.gpus);
      sets_.push_back(std::move(set));
    }
    std::stable_sort(sets_.begin(), sets_.end(), [](const LayoutSet& a, const LayoutSet& b) {
      return a.bound_ms < b.bound_ms;
    });
    if (!sets_.empty()) least_bound_ms_ = std::max(sets_[0].bound_ms, SingleMs());
  }

  // Some replica trains a sequence of each bucket.
  double SingleMs() const {
    double longest = 0;
    for (size_t j = 0; j < problem_.lengths.size(); ++j) {
      double best = kInfinity;
      for (const Layout& layout : problem_.candidates) {
        if (layout.Fit(problem_.lengths[j]) == 0 || layout.gpus() > problem_.gpus) continue;
        best = std::min(best, ReplicaMs(layout, {problem_.lengths[j]}, {1}));
      }
      if (costs_.sequences[j] > 0) longest = std::max(longest, best);
    }
    return longest;
  }

  void AddCut(LayoutSet* set, std::vector<double> weights) const {
    Cut cut{std::move(weights), 0};
    for (size_t j = 0; j < costs_.sequences.size(); ++j) {
      if (costs_.sequences[j] <= 0) continue;
      double least = kInfinity;
      for (size_t k = 0; k < set->members.size(); ++k) {
        const double ms = costs_.sequence_ms[set->members[k]][j];
        if (std::isfinite(ms)) least = std::min(least, cut.weights[k] * ms);
      }
      cut.work += costs_.sequences[j] * least;
    }
    // The newest cuts come from where the search is; the first one is LobRA's and stays.
    if (set->cuts.size() >= kCutsMax) set->cuts.erase(set->cuts.begin() + 1);
    set->cuts.push_back(std::move(cut));
  }

  // The bound of all plans that have counts[0..fixed) and any others on the GPUs that are left.
  double CutBound(const LayoutSet& set, const std::vector<int64_t>& counts, size_t fixed,
                  int64_t left) const {
    double bound = 0;
    for (const Cut& cut : set.cuts) {
      double work = cut.work, weight = 0, free = 0;
      for (size_t k = 0; k < set.members.size(); ++k) {
        const int i = set.members[k];
        if (k < fixed) {
          const double of_layout = cut.weights[k] * static_cast<double>(counts[k]);
          weight += of_layout;
          work += of_layout * costs_.filling_ms[i];
        } else {
          work += cut.weights[k] * costs_.filling_ms[i];
          free = std::max(free, cut.weights[k] / problem_.candidates[i].gpus());
        }
      }
      bound = std::max(bound, work / (weight + free * static_cast<double>(left)));
    }
    return bound;
  }

  bool Stopped() {
    if (enumerated_ >= options_.plans || linear_programs_ >= options_.linear_programs) {
      stopped_ = true;
    }
    if (options_.cancelled && enumerated_ % 1024 == 0 && options_.cancelled()) stopped_ = true;
    return stopped_;
  }

  void Enumerate(LayoutSet* set, size_t place, int64_t left, std::vector<int64_t>* counts) {
    ++enumerated_;
    if (Stopped()) return;
    if (CutBound(*set, *counts, place, left) >= Threshold()) return;
    const int64_t gpus = problem_.candidates[set->members[place]].gpus();
    if (place + 1 == set->members.size()) {
      (*counts)[place] = left / gpus;
      return Try(set, *counts);
    }
    int64_t others = 0;  // one replica each
    for (size_t k = place + 1; k < set->members.size(); ++k) {
      others += problem_.candidates[set->members[k]].gpus();
    }
    for (int64_t count = 1; count * gpus + others <= left; ++count) {
      (*counts)[place] = count;
      Enumerate(set, place + 1, left - count * gpus, counts);
    }
  }

  // A whole plan: its linear program, and a dispatch if that may be better than the best.
  void Try(LayoutSet* set, const std::vector<int64_t>& counts) {
    if (CutBound(*set, counts, counts.size(), 0) >= Threshold()) return;
    BalanceProblem program;
    program.sequences = costs_.sequences;
    for (size_t k = 0; k < counts.size(); ++k) {
      const int i = set->members[k];
      program.base_ms.push_back(costs_.filling_ms[i]);
      program.replicas.push_back(static_cast<double>(counts[k]));
      program.cost_ms.push_back(costs_.sequence_ms[i]);
    }
    const Balance balance = BalanceLoads(program);
    ++linear_programs_;
    std::vector<double> weights = balance.weights;
    for (size_t k = 0; k < counts.size(); ++k) weights[k] /= program.replicas[k];
    AddCut(set, std::move(weights));
    if (balance.bound_ms * (1 - kRounding) >= Threshold()) return;
    DispatchThis(*set, counts, balance.bound_ms);
  }

  void DispatchThis(const LayoutSet& set, const std::vector<int64_t>& counts, double bound_ms) {
    std::vector<int64_t> replicas(problem_.candidates.size(), 0);
    for (size_t k = 0; k < counts.size(); ++k) replicas[set.members[k]] = counts[k];
    DispatchOptions options;
    options.gap = options_.gap;
    options.nodes = options_.dispatch_nodes;
    options.cutoff_ms = compares_ ? Threshold() : best_.step_ms;
    options.cancelled = options_.cancelled;
    absl::StatusOr<DispatchPlan> plan = Dispatch(DispatchOf(problem_, replicas), options);
    assert(plan.ok());
    ++dispatched_;
    // Unlike the program's, the dispatch's bound lets layouts stay without work: another plan then.
    if (!plan->optimal)
      open_bound_ms_ = std::min(open_bound_ms_, std::max(plan->bound_ms, bound_ms));
    if (compares_ && plan->step_ms < Threshold()) compared_.push_back({plan->step_ms, replicas});
    if (plan->step_ms < best_.step_ms) {
      best_.replicas = std::move(replicas);
      best_.step_ms = plan->step_ms;
      best_.dispatch = *std::move(plan);
    }
  }

  // A good plan to begin with: GPUs by the work that length-based dispatch gives each layout,
  // then better neighbours as long as there are any.
  void StartFrom(LayoutSet* set) {
    const size_t size = set->members.size();
    std::vector<double> work(size, 0);
    double sum = 0;
    for (size_t j = 0; j < costs_.sequences.size(); ++j) {
      size_t best = 0;
      double best_work = kInfinity;
      for (size_t k = 0; k < size; ++k) {
        const int i = set->members[k];
        const double seconds = problem_.candidates[i].gpus() * costs_.sequence_ms[i][j];
        if (seconds < best_work) {
          best_work = seconds;
          best = k;
        }
      }
      if (costs_.sequences[j] > 0) work[best] += costs_.sequences[j] * best_work;
    }
    for (double each : work) sum += each;
    std::vector<int64_t> counts(size, 1);
    int64_t left = problem_.gpus;
    for (int i : set->members) left -= problem_.candidates[i].gpus();
    const int64_t to_share = left;
    for (size_t k = 0; k < size; ++k) {
      const int64_t gpus = problem_.candidates[set->members[k]].gpus();
      const double share = sum > 0 ? static_cast<double>(to_share) * work[k] / sum : 0;
      const int64_t more =
          k + 1 == size
              ? left / gpus
              : std::min(left / gpus,
                         static_cast<int64_t>(std::lround(share / static_cast<double>(gpus))));
      counts[k] += more;
      left -= more * gpus;
    }
    Try(set, counts);
    while (!Stopped() && BetterNeighbour(set, &counts)) {
    }
  }

  // One replica fewer of one layout, as many of another as there is then room for.
  bool BetterNeighbour(LayoutSet* set, std::vector<int64_t>* counts) {
    const double before = best_.step_ms;
    int64_t left = problem_.gpus;
    for (size_t k = 0; k < counts->size(); ++k) {
      left -= (*counts)[k] * problem_.candidates[set->members[k]].gpus();
    }
    for (size_t from = 0; from < counts->size(); ++from) {
      for (size_t to = 0; to < counts->size(); ++to) {
        if (from == to) continue;
        const int64_t of_from = problem_.candidates[set->members[from]].gpus();
        const int64_t of_to = problem_.candidates[set->members[to]].gpus();
        const int64_t fewer = std::max<int64_t>(1, (of_to - left + of_from - 1) / of_from);
        if ((*counts)[from] <= fewer) continue;
        std::vector<int64_t> next = *counts;
        next[from] -= fewer;
        const int64_t room = left + fewer * of_from;
        next[to] += room / of_to;
        next.back() += room % of_to / problem_.candidates[set->members.back()].gpus();
        ++enumerated_;
        Try(set, next);
        if (best_.step_ms < before) {
          *counts = next;
          return true;
        }
      }
    }
    return false;
  }

  absl::StatusOr<Deployment> Result() {
    if (!std::isfinite(best_.step_ms)) return absl::CancelledError("cancelled before any plan");
    const double proof_ms = best_.step_ms * (1 - options_.gap) * (1 - kRounding);
    const double least_ms = least_bound_ms_ * (1 - kRounding);
    best_.bound_ms = stopped_ ? least_ms : std::max(least_ms, std::min(proof_ms, open_bound_ms_));
    best_.bound_ms = std::min(best_.bound_ms, best_.step_ms);
    best_.optimal = best_.bound_ms >= proof_ms * (1 - kRounding);
    best_.linear_bound_ms = least_ms;
    best_.enumerated = enumerated_;
    best_.linear_programs = linear_programs_;
    best_.dispatched = dispatched_;
    return best_;
  }

  const DeployProblem& problem_;
  const DeployOptions& options_;
  const bool compares_;  // collects the plans to compare
  const Costs costs_;
  std::vector<LayoutSet> sets_;
  Deployment best_;
  std::vector<std::pair<double, std::vector<int64_t>>> compared_;  // step_ms, p_i
  double least_bound_ms_ = 0;
  double open_bound_ms_ = kInfinity;  // of plans whose dispatch ended early
  int64_t enumerated_ = 0, linear_programs_ = 0, dispatched_ = 0;
  bool stopped_ = false;
};

absl::Status Check(const DeployProblem& problem) {
  if (problem.candidates.empty() || problem.candidates.size() > 16) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.candidates.size(), " layouts; there have to be 1 to 16"));
  }
  if (problem.gpus < 1 || problem.gpus > 65'536) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.gpus, " GPUs; there have to be 1 to 65536"));
  }
  for (size_t j = 0; j < problem.sequences.size(); ++j) {
    if (!(problem.sequences[j] >= 0 && problem.sequences[j] <= 1e9)) {
      return absl::InvalidArgumentError(
          absl::StrCat("bucket ", j, ": ", problem.sequences[j], " sequences a step"));
    }
  }
  if (problem.sequences.size() != problem.lengths.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.lengths.size(), " lengths, ", problem.sequences.size(), " counts"));
  }
  return CheckDispatch(DispatchOf(problem, std::vector<int64_t>(problem.candidates.size(), 1)));
}

void Spread(const DeployProblem& problem, Deployment* plan) {
  const DispatchProblem dispatch = DispatchOf(problem, plan->replicas);
  plan->spread_ms = SpreadMs(dispatch, SpreadOverReplicas(dispatch, plan->dispatch));
}

}  // namespace

DispatchProblem DispatchOf(const DeployProblem& problem, const std::vector<int64_t>& replicas) {
  DispatchProblem dispatch;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] > 0) {
      dispatch.groups.push_back({problem.candidates[i], static_cast<int>(replicas[i]), {}});
    }
  }
  dispatch.lengths = problem.lengths;
  for (double expected : problem.sequences) {
    dispatch.sequences.push_back(static_cast<int64_t>(std::ceil(expected - 1e-9)));
  }
  return dispatch;
}

absl::StatusOr<double> MeanStepMs(const DeployProblem& problem,
                                  const std::vector<int64_t>& replicas,
                                  const std::vector<StepSample>& samples,
                                  const DispatchOptions& options) {
  double sum = 0;
  DispatchProblem step = DispatchOf(problem, replicas);
  for (const StepSample& sample : samples) {
    step.lengths = sample.lengths;
    step.sequences = sample.sequences;
    const auto plan = Dispatch(step, options);
    if (!plan.ok()) return plan.status();
    sum += SpreadMs(step, SpreadOverReplicas(step, *plan));
  }
  return samples.empty() ? 0 : sum / static_cast<double>(samples.size());
}

absl::StatusOr<Deployment> Deploy(const DeployProblem& problem, const DeployOptions& options,
                                  const std::vector<StepSample>& samples) {
  if (absl::Status status = Check(problem); !status.ok()) return status;
  Planner planner(problem, options, !samples.empty());
  absl::StatusOr<Deployment> best = planner.Run();
  if (!best.ok()) return best;
  Spread(problem, &*best);
  if (samples.empty()) return best;
  DispatchOptions dispatch;
  dispatch.gap = options.gap;
  dispatch.nodes = options.dispatch_nodes;
  dispatch.cancelled = options.cancelled;
  best->mean_step_ms = kInfinity;
  const std::vector<int64_t> first = best->replicas;
  for (const std::vector<int64_t>& replicas : planner.Compared()) {
    const auto mean_ms = MeanStepMs(problem, replicas, samples, dispatch);
    // Plans hold what the buckets hold; a sample may be longer.
    if (!mean_ms.ok()) return absl::InvalidArgumentError(mean_ms.status().message());
    if (*mean_ms >= best->mean_step_ms) continue;
    best->mean_step_ms = *mean_ms;
    best->replicas = replicas;
  }
  if (best->replicas == first) return best;
  auto plan = Dispatch(DispatchOf(problem, best->replicas), dispatch);
  if (!plan.ok()) return plan.status();
  best->step_ms = plan->step_ms;
  best->dispatch = *std::move(plan);
  best->optimal = false;  // of equation 2 it is not the best
  Spread(problem, &*best);
  return best;
}

std::string Deployment::ToText(const DeployProblem& problem) const {
  std::string text;
  for (size_t i = 0; i < replicas.size(); ++i) {
    if (replicas[i] == 0) continue;
    absl::StrAppend(&text, text.empty() ? "" : ", ", problem.candidates[i].Name(), " x ",
                    replicas[i]);
  }
  absl::StrAppendFormat(&text, ": %.3f s a step, %.1f GPU seconds; no plan below %.3f s%s",
                        step_ms / 1000, gpu_seconds(problem.gpus), bound_ms / 1000,
                        optimal ? "" : " (not proved the best)");
  absl::StrAppendFormat(&text, "; spread over replicas %.3f s, none below %.3f s", spread_ms / 1000,
                        linear_bound_ms / 1000);
  if (mean_step_ms > 0) {
    absl::StrAppendFormat(&text, "; mean of the samples %.3f s", mean_step_ms / 1000);
  }
  return absl::StrCat(text, "; ", enumerated, " partitions, ", linear_programs,
                      " linear programs, ", dispatched, " dispatched");
}

}  // namespace lorad::planner
