#include "planner/replicas/dispatch.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/replicas/dispatch_search.h"

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int kReplicasMax = 65'536;
constexpr double kRounding = 1e-9;  // relative, of the bounds
using Counts = std::vector<std::vector<int64_t>>;

class Search {
 public:
  Search(const DispatchProblem& problem, const DispatchOptions& options)
      : options_(options), loads_(problem) {
    counts_.assign(loads_.groups(), std::vector<int64_t>(loads_.buckets(), 0));
    const auto groups = static_cast<int64_t>(loads_.groups());
    const auto buckets = static_cast<int64_t>(loads_.buckets());
    const int64_t rows = groups + buckets;
    program_nodes_ = groups * buckets * rows * rows / 100'000;
  }

  DispatchPlan Run() {
    const int last = static_cast<int>(loads_.buckets()) - 1;
    const Balance root = BalanceLoads(loads_.Rest(counts_, last));
    DispatchPlan plan;
    best_ = RoundAndImprove(loads_, root);
    best_ms_ = StepMs(best_);
    plan.linear_bound_ms = std::max(root.bound_ms, loads_.SingleMs()) * (1 - kRounding);
    plan.bound_ms = plan.linear_bound_ms;
    if (plan.bound_ms < Threshold()) {
      Branch(last, root);
      // All that was cut off has at least the threshold of that time, which only ever fell.
      if (!stopped_) plan.bound_ms = std::max(plan.bound_ms, Threshold());
    }
    plan.bound_ms = std::min(plan.bound_ms, best_ms_);
    plan.optimal = plan.bound_ms >= Threshold() * (1 - kRounding);
    plan.per_replica = best_;
    plan.nodes = nodes_;
    return plan;
  }

 private:
  double StepMs(const Counts& counts) const {
    double ms = 0;
    for (size_t i = 0; i < counts.size(); ++i) ms = std::max(ms, loads_.Ms(i, counts[i]));
    return ms;
  }

  // Nothing from here on is of interest.
  double Threshold() const {
    return std::min(best_ms_, options_.cutoff_ms) * (1 - options_.gap) * (1 - kRounding);
  }

  bool Stopped() {
    if (nodes_ >= options_.nodes) stopped_ = true;
    if (options_.cancelled && nodes_ % 256 == 0 && options_.cancelled()) stopped_ = true;
    return stopped_;
  }

  // Buckets 0..bucket are still to be given out; `guide` is their linear program.
  void Branch(int bucket, const Balance& guide) {
    if (bucket < 0) {
      const double ms = StepMs(counts_);
      if (ms < best_ms_) {
        best_ms_ = ms;
        best_ = counts_;
      }
      return;
    }
    Share(bucket, 0, loads_.sequences(bucket), guide);
  }

  // How many of the bucket group `group` and those behind it get.
  void Share(int bucket, size_t group, int64_t left, const Balance& guide) {
    ++nodes_;
    if (Stopped()) return;
    if (left <= 0) return Descend(bucket);
    if (group == loads_.groups()) return;
    if (loads_.fits(group, bucket) == 0) return Share(bucket, group + 1, left, guide);
    const int64_t replicas = loads_.replicas(group);
    const int64_t most = (left + replicas - 1) / replicas;
    bool others = false;
    for (size_t i = group + 1; i < loads_.groups(); ++i) others |= loads_.fits(i, bucket) > 0;
    const double wish = guide.sequences[group][bucket] / static_cast<double>(replicas);
    // Whole numbers by distance from the wish: below, above in turn.
    int64_t below = std::min(static_cast<int64_t>(std::floor(wish + 1e-6)), most);
    const int64_t least = others ? 0 : most;
    int64_t above = std::max(below + 1, least);
    while ((below >= least || above <= most) && !stopped_) {
      const bool down = below >= least && (above > most || wish - static_cast<double>(below) <=
                                                               static_cast<double>(above) - wish);
      const int64_t count = down ? below-- : above++;
      counts_[group][bucket] = count;
      if (loads_.Ms(group, counts_[group]) >= Threshold()) {
        if (!down) above = most + 1;  // T rises with the count
        continue;
      }
      Share(bucket, group + 1, left - count * replicas, guide);
    }
    counts_[group][bucket] = 0;
  }

  void Descend(int bucket) {
    if (bucket == 0) return Branch(-1, {});
    nodes_ += program_nodes_;
    const Balance rest = BalanceLoads(loads_.Rest(counts_, bucket - 1));
    if (rest.bound_ms * (1 - kRounding) >= Threshold()) return;
    Branch(bucket - 1, rest);
  }

  const DispatchOptions& options_;
  const GroupLoads loads_;
  Counts counts_, best_;
  double best_ms_ = kInfinity;
  int64_t nodes_ = 0;
  int64_t program_nodes_ = 0;  // that a linear program counts as
  bool stopped_ = false;
};

absl::Status CheckGroup(const ReplicaGroup& group, size_t index, size_t buckets) {
  const TimeCoefficients& t = group.layout.stage_ms;
  for (double x : {t.constant_ms, t.token_ms, t.squared_ms}) {
    if (!std::isfinite(x) || x < 0 || x > 1e12) {
      return absl::InvalidArgumentError(absl::StrCat("group ", index, ": time coefficient ", x));
    }
  }
  if (t.token_ms <= 0 && t.squared_ms <= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("group ", index, ": sequences that take no time"));
  }
  if (group.replicas < 1 || group.replicas > kReplicasMax || group.layout.tensor_parallel < 1 ||
      group.layout.pipeline_stages < 1 || group.layout.capacity_tokens < 0) {
    return absl::InvalidArgumentError(absl::StrCat("group ", index, ": ", group.replicas,
                                                   " replicas of ", group.layout.Name(), ", ",
                                                   group.layout.capacity_tokens, " tokens"));
  }
  if (!group.fixed.empty() && group.fixed.size() != buckets) {
    return absl::InvalidArgumentError(absl::StrCat("group ", index, ": fixed sequences of ",
                                                   group.fixed.size(), " buckets, not ", buckets));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckDispatch(const DispatchProblem& problem) {
  const size_t buckets = problem.lengths.size();
  if (problem.groups.empty() || problem.groups.size() > kGroupsMax || buckets == 0 ||
      buckets > kBucketsMax || problem.sequences.size() != buckets) {
    return absl::InvalidArgumentError(absl::StrCat(
        problem.groups.size(), " groups, ", buckets, " lengths, ", problem.sequences.size(),
        " counts; there have to be 1 to 32 groups and a count for each of 1 to 64 lengths"));
  }
  for (size_t i = 0; i < problem.groups.size(); ++i) {
    const absl::Status status = CheckGroup(problem.groups[i], i, buckets);
    if (!status.ok()) return status;
  }
  for (size_t j = 0; j < buckets; ++j) {
    const int64_t before = j > 0 ? problem.lengths[j - 1] : 0;
    const int64_t count = problem.sequences[j];
    if (problem.lengths[j] <= before || problem.lengths[j] > int64_t{1} << 40 || count < 0 ||
        count > 1'000'000'000) {
      return absl::InvalidArgumentError(absl::StrCat("bucket ", j, ": ", count,
                                                     " sequences of length ", problem.lengths[j],
                                                     " after ", before));
    }
    bool fits = count == 0;
    for (const ReplicaGroup& group : problem.groups) {
      const bool holds = group.layout.Fit(problem.lengths[j]) > 0;
      fits |= holds;
      if (!group.fixed.empty() && (group.fixed[j] < 0 || (group.fixed[j] > 0 && !holds))) {
        return absl::InvalidArgumentError(absl::StrCat(
            group.fixed[j], " fixed sequences of length ", problem.lengths[j], " on ",
            group.layout.Name(), ", which holds ", group.layout.capacity_tokens, " tokens"));
      }
    }
    if (!fits) {
      return absl::FailedPreconditionError(absl::StrCat(
          "no replica holds a sequence of ", problem.lengths[j], " tokens (bucket ", j, ")"));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<DispatchPlan> Dispatch(const DispatchProblem& problem,
                                      const DispatchOptions& options) {
  if (absl::Status status = CheckDispatch(problem); !status.ok()) return status;
  DispatchPlan plan = Search(problem, options).Run();
  Complete(problem, &plan);
  return plan;
}

std::string DispatchPlan::ToText(const DispatchProblem& problem) const {
  std::string text;
  for (size_t i = 0; i < sequences.size(); ++i) {
    const ReplicaGroup& group = problem.groups[i];
    absl::StrAppendFormat(&text, "%s x %d: %.3f s,", group.layout.Name(), group.replicas,
                          group_ms[i] / 1000);
    for (size_t j = 0; j < sequences[i].size(); ++j) {
      if (sequences[i][j] > 0) {
        absl::StrAppend(&text, " ", sequences[i][j], " of ", problem.lengths[j]);
      }
    }
    absl::StrAppend(&text, "\n");
  }
  absl::StrAppendFormat(&text, "step %.3f s, no plan below %.3f s%s", step_ms / 1000,
                        bound_ms / 1000, optimal ? "" : " (search ended early)");
  return text;
}

}  // namespace lorad::planner
