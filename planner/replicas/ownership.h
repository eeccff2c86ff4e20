// Replicas that own adapters beside replicas that share them. A shared adapter trains on every
// replica, and its gradients are reduced over them each step; an owned one trains on one
// replica alone, and nothing is reduced. With adapters a of sequences s_aj, owned by replica o(a)
// or shared, reduction time rho_a:
//   min over o of  max_r T_r({sum_{a: o(a) = r} s_aj + n_rj}) + sum_{a shared} rho_a
// where n dispatches the shared adapters' sequences (planner/replicas/dispatch.h). rho counts only
// where there is more than one replica. LobRA shares all adapters; owning wins where adapters are
// many and short of work, or the network is slow.
//
// Branch and bound over the adapters, those with the most work first; the bound is the linear
// program with all undecided work divisible at no reduction. At most 32 less the groups replicas
// own adapters.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/replicas/dispatch.h"

namespace lorad::planner {

struct AdapterWork {
  std::string name;
  std::vector<int64_t> sequences;  // of a step, in each bucket
  double reduction_ms = 0;         // rho
};

struct OwnershipProblem {
  std::vector<ReplicaGroup> groups;  // without fixed sequences
  std::vector<int64_t> lengths;
  std::vector<AdapterWork> adapters;  // 1 to 1000
};

struct OwnershipOptions {
  double gap = 0;
  int64_t nodes = 2'000;            // of the search over owners
  int64_t dispatch_nodes = 20'000;  // for each dispatch
  std::function<bool()> cancelled = nullptr;
};

struct Owner {
  int group = -1;  // -1: shared by all
  int replica = 0;

  bool operator==(const Owner&) const = default;
};

struct OwnershipPlan {
  std::vector<Owner> owners;  // of each adapter
  // The replicas by what they own: each owner a group of its own, its adapters' sequences fixed.
  DispatchProblem shared;
  DispatchPlan dispatch;    // of the shared adapters
  double reduction_ms = 0;  // sum of rho over the shared ones
  double step_ms = 0;
  double all_shared_ms = 0;  // what LobRA does, for comparison
  double bound_ms = 0;
  bool optimal = false;
  int64_t nodes = 0;

  std::string ToText(const OwnershipProblem& problem) const;
};

// InvalidArgument and FailedPrecondition as Dispatch. Deterministic.
absl::StatusOr<OwnershipPlan> PlanOwnership(const OwnershipProblem& problem,
                                            const OwnershipOptions& options = {});

}  // namespace lorad::planner
