#include "planner/replicas/ownership.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "planner/replicas/dispatch_search.h"

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kRounding = 1e-9;

class Search {
 public:
  Search(const OwnershipProblem& problem, const OwnershipOptions& options)
      : problem_(problem), options_(options), replicas_(0) {
    for (const ReplicaGroup& group : problem.groups) {
      owned_.emplace_back(group.replicas, std::vector<int64_t>(problem.lengths.size(), 0));
      owns_.emplace_back(group.replicas, 0);
      replicas_ += group.replicas;
    }
    for (size_t a = 0; a < problem.adapters.size(); ++a) order_.push_back(static_cast<int>(a));
    std::stable_sort(order_.begin(), order_.end(),
                     [&](int a, int b) { return LeastMs(a) > LeastMs(b); });
    owners_.assign(problem.adapters.size(), Owner{});
    best_.step_ms = kInfinity;
  }

  OwnershipPlan Run() {
    shared_.assign(problem_.lengths.size(), 0);
    undecided_ = shared_;
    for (const AdapterWork& adapter : problem_.adapters) Add(adapter.sequences, 1, &undecided_);
    const double root_ms = Bound();
    // LobRA's own plan first: all shared.
    std::swap(shared_, undecided_);
    for (const AdapterWork& adapter : problem_.adapters) reduction_ms_ += Rho(adapter);
    Try();
    best_.all_shared_ms = best_.step_ms;
    std::swap(shared_, undecided_);
    reduction_ms_ = 0;
    if (root_ms < Threshold()) Branch(0);
    best_.bound_ms =
        stopped_ ? std::min(root_ms, open_ms_) : std::max(root_ms, std::min(Threshold(), open_ms_));
    best_.bound_ms = std::min(best_.bound_ms, best_.step_ms);
    best_.optimal = best_.bound_ms >= Threshold() * (1 - kRounding);
    best_.nodes = nodes_;
    return best_;
  }

 private:
  double Threshold() const { return best_.step_ms * (1 - options_.gap) * (1 - kRounding); }
  double Rho(const AdapterWork& adapter) const { return replicas_ > 1 ? adapter.reduction_ms : 0; }

  // GPU time where it trains cheapest.
  double LeastMs(int a) const {
    double sum = 0;
    for (size_t j = 0; j < problem_.lengths.size(); ++j) {
      double least = kInfinity;
      for (const ReplicaGroup& group : problem_.groups) {
        if (group.layout.Fit(problem_.lengths[j]) == 0) continue;
        least = std::min(least, group.layout.gpus() * group.layout.SequenceMs(problem_.lengths[j]));
      }
      const int64_t count = problem_.adapters[a].sequences[j];
      if (count > 0) sum += least * static_cast<double>(count);
    }
    return sum;
  }

  static void Add(const std::vector<int64_t>& counts, int64_t sign, std::vector<int64_t>* to) {
    for (size_t j = 0; j < counts.size(); ++j) (*to)[j] += sign * counts[j];
  }

  // Owners apart, the others of each group together.
  DispatchProblem Dispatchable(const std::vector<int64_t>& sequences) const {
    DispatchProblem dispatch{{}, problem_.lengths, sequences};
    for (size_t g = 0; g < problem_.groups.size(); ++g) {
      int others = problem_.groups[g].replicas;
      for (size_t r = 0; r < owned_[g].size(); ++r) {
        if (owns_[g][r] == 0) continue;
        dispatch.groups.push_back({problem_.groups[g].layout, 1, owned_[g][r]});
        --others;
      }
      if (others > 0) dispatch.groups.push_back({problem_.groups[g].layout, others, {}});
    }
    return dispatch;
  }

  double Bound() const {
    std::vector<int64_t> open = shared_;
    Add(undecided_, 1, &open);
    const DispatchProblem dispatch = Dispatchable(open);
    const GroupLoads loads(dispatch);
    const std::vector<std::vector<int64_t>> none(loads.groups(),
                                                 std::vector<int64_t>(loads.buckets(), 0));
    const Balance balance = BalanceLoads(loads.Rest(none, static_cast<int>(loads.buckets()) - 1));
    return (balance.bound_ms + reduction_ms_) * (1 - kRounding);
  }

  // All are decided.
  void Try() {
    DispatchProblem dispatch = Dispatchable(shared_);
    DispatchOptions options;
    options.gap = options_.gap;
    options.nodes = options_.dispatch_nodes;
    options.cutoff_ms = std::max(0.0, best_.step_ms - reduction_ms_);
    options.cancelled = options_.cancelled;
    absl::StatusOr<DispatchPlan> plan = Dispatch(dispatch, options);
    assert(plan.ok());
    if (!plan->optimal) open_ms_ = std::min(open_ms_, plan->bound_ms + reduction_ms_);
    const double ms = plan->step_ms + reduction_ms_;
    if (ms >= best_.step_ms) return;
    best_.step_ms = ms;
    best_.owners = owners_;
    best_.reduction_ms = reduction_ms_;
    best_.shared = std::move(dispatch);
    best_.dispatch = *std::move(plan);
  }

  struct Child {
    Owner owner;
    double bound_ms;
  };

  void Branch(size_t place) {
    if (place == order_.size()) return Try();
    const int a = order_[place];
    std::vector<Child> children;
    for (const Owner& owner : Owners(a)) {
      Assign(a, owner, 1);
      children.push_back({owner, Bound()});
      Assign(a, owner, -1);
    }
    std::stable_sort(children.begin(), children.end(),
                     [](const Child& x, const Child& y) { return x.bound_ms < y.bound_ms; });
    for (const Child& child : children) {
      if (child.bound_ms >= Threshold()) break;
      if (++nodes_ > options_.nodes || (options_.cancelled && options_.cancelled())) {
        stopped_ = true;
      }
      if (stopped_) return;
      Assign(a, child.owner, 1);
      Branch(place + 1);
      Assign(a, child.owner, -1);
    }
  }

  // Shared; or one of the replicas that hold it, of those of a group that own nothing the first.
  std::vector<Owner> Owners(int a) const {
    std::vector<Owner> owners = {Owner{}};
    size_t owning = 0;  // each a group of its own when dispatched
    for (const std::vector<int>& group : owns_) {
      owning += group.size() - std::count(group.begin(), group.end(), 0);
    }
    const bool room = problem_.groups.size() + owning < kGroupsMax;
    for (size_t g = 0; g < problem_.groups.size(); ++g) {
      bool holds = true;
      for (size_t j = 0; j < problem_.lengths.size(); ++j) {
        holds &= problem_.adapters[a].sequences[j] == 0 ||
                 problem_.groups[g].layout.Fit(problem_.lengths[j]) > 0;
      }
      if (!holds) continue;
      for (size_t r = 0; r < owned_[g].size(); ++r) {
        if (owns_[g][r] > 0 || room) owners.push_back({static_cast<int>(g), static_cast<int>(r)});
        if (owns_[g][r] == 0) break;
      }
    }
    return owners;
  }

  void Assign(int a, const Owner& owner, int sign) {
    const AdapterWork& adapter = problem_.adapters[a];
    Add(adapter.sequences, -sign, &undecided_);
    owners_[a] = sign > 0 ? owner : Owner{};
    if (owner.group < 0) {
      Add(adapter.sequences, sign, &shared_);
      reduction_ms_ += sign * Rho(adapter);
      return;
    }
    Add(adapter.sequences, sign, &owned_[owner.group][owner.replica]);
    owns_[owner.group][owner.replica] += sign;
  }

  const OwnershipProblem& problem_;
  const OwnershipOptions& options_;
  int64_t replicas_;
  std::vector<int> order_;                                // adapters, most work first
  std::vector<std::vector<std::vector<int64_t>>> owned_;  // [group][replica][bucket]
  std::vector<std::vector<int>> owns_;                    // adapters of [group][replica]
  std::vector<int64_t> shared_, undecided_;               // sequences
  double reduction_ms_ = 0;
  std::vector<Owner> owners_;
  OwnershipPlan best_;
  double open_ms_ = kInfinity;
  int64_t nodes_ = 0;
  bool stopped_ = false;
};

absl::Status Check(const OwnershipProblem& problem) {
  if (problem.adapters.empty() || problem.adapters.size() > 1000) {
    return absl::InvalidArgumentError(
        absl::StrCat(problem.adapters.size(), " adapters; there have to be 1 to 1000"));
  }
  DispatchProblem all{problem.groups, problem.lengths,
                      std::vector<int64_t>(problem.lengths.size(), 0)};
  for (const AdapterWork& adapter : problem.adapters) {
    if (adapter.sequences.size() != problem.lengths.size() ||
        !std::isfinite(adapter.reduction_ms) || adapter.reduction_ms < 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "adapter ", adapter.name, ": ", adapter.sequences.size(), " counts for ",
          problem.lengths.size(), " lengths, reduced in ", adapter.reduction_ms, " ms"));
    }
    for (size_t j = 0; j < problem.lengths.size(); ++j) {
      const int64_t count = adapter.sequences[j];
      if (count < 0 || count > 1'000'000'000) {
        return absl::InvalidArgumentError(
            absl::StrCat("adapter ", adapter.name, ": ", count, " sequences"));
      }
      all.sequences[j] += count;
    }
  }
  for (const ReplicaGroup& group : problem.groups) {
    if (!group.fixed.empty()) return absl::InvalidArgumentError("groups with fixed sequences");
  }
  return CheckDispatch(all);
}

}  // namespace

absl::StatusOr<OwnershipPlan> PlanOwnership(const OwnershipProblem& problem,
                                            const OwnershipOptions& options) {
  if (absl::Status status = Check(problem); !status.ok()) return status;
  return Search(problem, options).Run();
}

std::string OwnershipPlan::ToText(const OwnershipProblem& problem) const {
  std::string text;
  for (size_t a = 0; a < owners.size(); ++a) {
    const Owner& owner = owners[a];
    absl::StrAppend(&text, problem.adapters[a].name, ": ",
                    owner.group < 0 ? "shared"
                                    : absl::StrCat("owned by replica ", owner.replica, " of ",
                                                   problem.groups[owner.group].layout.Name()),
                    "\n");
  }
  absl::StrAppendFormat(&text,
                        "step %.3f s, of it %.3f s reduction; all shared %.3f s; no plan below "
                        "%.3f s%s",
                        step_ms / 1000, reduction_ms / 1000, all_shared_ms / 1000, bound_ms / 1000,
                        optimal ? "" : " (search ended early)");
  return text;
}

}  // namespace lorad::planner
