// The GPUs of a sweep as nested groups, and what trains in each of them, one behind the other.
// Within the planner only; plan.h says what it is for.
//
// A group of the largest degree is cut into groups of the next smaller one, these again, down to
// the smallest: 8 GPUs of the degrees 1, 2, 4 and 8 are 15 groups. A group starts when the group
// around it has ended; so GPUs work together first and apart later. Every plan whose jobs take
// groups of this kind can be brought into that order and ends no later by it: jobs of the outer
// group move to the front, those of the inner ones follow in their own order.
#pragma once

#include <cstdint>
#include <vector>

#include "planner/sweep/layout.h"
#include "planner/sweep/plan.h"

namespace lorad::planner {

struct SweepGroup {
  const SweepProblem::Degree* degree = nullptr;
  int first_gpu = 0;
  int parent = -1;  // the group around it
  int groups = 1;   // itself and those within it, which follow it in the list

  SweepMembers members;
  double seconds = 0;     // of its members
  double byte_steps = 0;  // sums for a lower bound of `seconds` that needs no layout
  double work_s = 0;

  double begin_s = 0;  // when the group around it ends
  double rest_s = 0;   // that those within it take afterwards, the slowest of them
};

class SweepGroups {
 public:
  // Both must outlive it. GPUs beyond the last group of the smallest degree stay idle.
  SweepGroups(const SweepProblem& problem, bool replace);

  // A group comes before those within it, in the order of GPUs.
  const std::vector<SweepGroup>& list() const { return groups_; }
  double Makespan() const;

  bool Fits(int group, int32_t kind) const {
    return problem_->kinds()[kind].bytes <= groups_[group].degree->capacity_bytes;
  }
  // For the group without one `out` and with one `in` (-1: none): no less than its seconds, and the
  // group itself, laid out as well as can be. With more of them it is laid out fast instead.
  double BoundSeconds(int group, int32_t out, int32_t in) const;
  SweepGroup Changed(int group, int32_t out, int32_t in) const;
  SweepGroup With(int group, const std::vector<int32_t>& kinds) const;
  // When all that is within the group has ended, were its members to take `seconds`; and of two
  // groups, the later.
  double EndWith(int group, double seconds) const {
    return groups_[group].begin_s + seconds + groups_[group].rest_s;
  }
  double EndWith(int a, double a_seconds, int b, double b_seconds) const;

  void Set(int group, SweepGroup with);
  void Clear();
  SweepPlan Plan() const;

 private:
  void Build(size_t degree, int first_gpu, int parent);
  void Count(SweepGroup* group, int32_t kind, int32_t count) const;
  void Measure(SweepGroup* group, bool well) const;
  // The time of the groups within `outer`, but for the one `except`.
  double RestWithout(int outer, int except) const;

  const SweepProblem* problem_;
  bool replace_;
  std::vector<SweepGroup> groups_;
};

}  // namespace lorad::planner
