// Makespan by local search over groups of GPUs.
#include <algorithm>
#include <cassert>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "planner/sweep_layout.h"
#include "planner/sweep_plan.h"

namespace lorad::planner {
namespace {

// Ways to cut the GPUs into groups; all of them up to this many.
constexpr size_t kCutsMax = 48;
// Ways that are filled anew by bisection, and starts that are searched to the end.
constexpr size_t kCutsRefilled = 10;
constexpr size_t kCutsKept = 4;
// Steps in which a group is filled.
constexpr size_t kChunks = 32;
// Larger groups count as several evaluations.
constexpr int64_t kMembersAnEvaluation = 16;
// Of the target of one fill: a thousandth of the range.
constexpr int kBisections = 10;
// Groups times configurations, summed over the cuts.
constexpr size_t kFillWorkMax = 2'000'000;
// Less is rounding.
constexpr double kGain = 1e-9;

using Cut = std::vector<const SweepProblem::Degree*>;  // most GPUs first

struct GroupPlan {
  const SweepProblem::Degree* degree = nullptr;
  SweepMembers members;
  // Sums for a lower bound of its seconds that needs no layout.
  double byte_steps = 0;
  double work_s = 0;
  double seconds = 0;
};

void Add(SweepMembers* members, int32_t kind, int32_t count) {
  const auto at = std::lower_bound(
      members->begin(), members->end(), kind,
      [](const std::pair<int32_t, int32_t>& entry, int32_t k) { return entry.first < k; });
  if (at != members->end() && at->first == kind) {
    at->second += count;
    assert(at->second >= 0);
    if (at->second == 0) members->erase(at);
  } else {
    assert(count > 0);
    members->insert(at, {kind, count});
  }
}

class Search {
 public:
  Search(const SweepProblem& problem, const SweepOptions& options, const Cut& cut)
      : problem_(problem), options_(options) {
    for (const SweepProblem::Degree* degree : cut) groups_.push_back({degree, {}, 0, 0, 0});
  }

  // Longest first, each to the group that ends first with it.
  void Fill() {
    for (const std::vector<int32_t>& chunk : Chunks()) {
      GroupPlan* best = nullptr;
      GroupPlan best_with;
      for (GroupPlan& group : groups_) {
        if (!Fits(group, chunk)) continue;
        if (best != nullptr && Bound(group, -1, chunk[0]) >= best_with.seconds) continue;
        GroupPlan with = With(group, chunk);
        if (best == nullptr || with.seconds < best_with.seconds) {
          best = &group;
          best_with = std::move(with);
        }
      }
      assert(best != nullptr);
      *best = std::move(best_with);
    }
  }

  // Longest first, each to the first group that ends within `target_s` with it; false where one
  // finds none. Short configurations so gather in groups of their own, which long ones would make
  // run idle iterations.
  bool FillWithin(double target_s) {
    for (GroupPlan& group : groups_) group = {group.degree, {}, 0, 0, 0};
    for (const std::vector<int32_t>& chunk : Chunks()) {
      const bool placed = std::any_of(groups_.begin(), groups_.end(), [&](GroupPlan& group) {
        if (!Fits(group, chunk) || Bound(group, -1, chunk[0]) > target_s) return false;
        GroupPlan with = With(group, chunk);
        if (with.seconds > target_s) return false;
        group = std::move(with);
        return true;
      });
      if (!placed) return false;
    }
    return true;
  }

  // The least target that FillWithin meets between `low` and what the groups take now; they keep
  // what they had if it meets none.
  void Refill(double low) {
    std::vector<GroupPlan> best = groups_;
    double high = makespan();
    for (int i = 0; i < kBisections && high > low * (1 + kGain); ++i) {
      const double target = (low + high) / 2;
      if (FillWithin(target)) {
        best = groups_;
        high = makespan();
      } else {
        low = target;
      }
    }
    groups_ = std::move(best);
  }

  // Until no change helps, `evaluations` are spent, or the makespan meets `enough`.
  void Improve(int64_t evaluations, double enough) {
    evaluations_left_ = evaluations;
    while (evaluations_left_ > 0 && makespan() > enough) {
      GroupPlan& last = *Last();
      std::optional<Change> change = BestChange(last, /*exchange=*/false);
      if (!change) change = BestChange(last, /*exchange=*/true);
      if (!change) return;
      last = std::move(change->from);
      *change->to = std::move(change->with);
    }
  }

  Cut cut() const {
    Cut cut;
    for (const GroupPlan& group : groups_) cut.push_back(group.degree);
    return cut;
  }

  double makespan() const {
    double seconds = 0;
    for (const GroupPlan& group : groups_) seconds = std::max(seconds, group.seconds);
    return seconds;
  }

  SweepPlan Plan() const {
    SweepPlan plan;
    plan.by = options_.replace ? "search with replacement" : "search";
    std::vector<std::vector<int>> indexes = FreeIndexes(problem_);
    int gpu = 0;
    for (const GroupPlan& group : groups_) {
      std::vector<int> gpus(group.degree->gpus);
      std::iota(gpus.begin(), gpus.end(), gpu);
      gpu += group.degree->gpus;
      if (group.members.empty()) continue;
      std::vector<SweepRun> runs;
      LayOut(problem_, *group.degree, group.members, options_.replace, &runs);
      for (SweepJob& job : JobsOf(problem_, *group.degree, runs, gpus, 0, &indexes)) {
        plan.jobs.push_back(std::move(job));
      }
    }
    FinishPlan(problem_, &plan);
    return plan;
  }

 private:
  struct Change {
    GroupPlan from;  // the group that ends last, afterwards
    GroupPlan* to;
    GroupPlan with;  // the other, afterwards
    double worse;    // the later end of the two
  };

  bool Fits(const GroupPlan& group, int32_t kind) const {
    return problem_.kinds()[kind].bytes <= group.degree->capacity_bytes;
  }
  bool Fits(const GroupPlan& group, const std::vector<int32_t>& chunk) const {
    return std::all_of(chunk.begin(), chunk.end(), [&](int32_t kind) { return Fits(group, kind); });
  }

  // Configurations in their order, as many at a time as leave each group kChunks of them: few
  // groups with many members each are filled in few steps.
  std::vector<std::vector<int32_t>> Chunks() const {
    std::vector<int32_t> list;
    for (size_t k = 0; k < problem_.kinds().size(); ++k) {
      list.insert(list.end(), problem_.kinds()[k].configurations.size(), static_cast<int32_t>(k));
    }
    const size_t size = std::max<size_t>(1, list.size() / (groups_.size() * kChunks));
    std::vector<std::vector<int32_t>> chunks;
    for (size_t i = 0; i < list.size(); i += size) {
      chunks.emplace_back(list.begin() + static_cast<ptrdiff_t>(i),
                          list.begin() + static_cast<ptrdiff_t>(std::min(i + size, list.size())));
    }
    return chunks;
  }

  double ByteSteps(int32_t kind) const {
    return static_cast<double>(problem_.kinds()[kind].bytes) *
           static_cast<double>(problem_.kinds()[kind].steps);
  }

  // Seconds of the group without one `out` and with one `in` (-1: none) are no less than this.
  double Bound(const GroupPlan& group, int32_t out, int32_t in) const {
    double byte_steps = group.byte_steps, work_s = group.work_s;
    if (out >= 0) byte_steps -= ByteSteps(out), work_s -= group.degree->work_s[out];
    if (in >= 0) byte_steps += ByteSteps(in), work_s += group.degree->work_s[in];
    const double shared = group.degree->capacity_bytes > 0
                              ? byte_steps / static_cast<double>(group.degree->capacity_bytes)
                              : 0;
    const double longest = in >= 0 ? static_cast<double>(problem_.kinds()[in].steps) : 0;
    return group.degree->fixed_s * std::max(shared, longest) + work_s;
  }

  void Count(GroupPlan* group, int32_t kind, int32_t count) const {
    Add(&group->members, kind, count);
    group->byte_steps += count * ByteSteps(kind);
    group->work_s += count * group->degree->work_s[kind];
  }

  void Measure(GroupPlan* group) const {
    const int64_t iterations = LayOut(problem_, *group->degree, group->members, options_.replace);
    group->seconds = group->degree->fixed_s * static_cast<double>(iterations) + group->work_s;
  }

  GroupPlan With(const GroupPlan& group, const std::vector<int32_t>& kinds) const {
    GroupPlan with = group;
    for (int32_t kind : kinds) Count(&with, kind, 1);
    Measure(&with);
    return with;
  }

  GroupPlan Changed(const GroupPlan& group, int32_t out, int32_t in) {
    evaluations_left_ -= 1 + static_cast<int64_t>(group.members.size()) / kMembersAnEvaluation;
    GroupPlan changed = group;
    if (out >= 0) Count(&changed, out, -1);
    if (in >= 0) Count(&changed, in, 1);
    Measure(&changed);
    return changed;
  }

  GroupPlan* Last() {
    return &*std::max_element(
        groups_.begin(), groups_.end(),
        [](const GroupPlan& a, const GroupPlan& b) { return a.seconds < b.seconds; });
  }

  std::optional<Change> BestChange(GroupPlan& last, bool exchange) {
    std::optional<Change> best;
    double worst = last.seconds * (1 - kGain);
    for (GroupPlan& other : groups_) {
      if (&other == &last) continue;
      // Groups alike give the same changes; the first of them will do.
      if (std::any_of(groups_.begin(), groups_.end(), [&](const GroupPlan& before) {
            return &before < &other && &before != &last && before.degree == other.degree &&
                   before.members == other.members;
          })) {
        continue;
      }
      for (const auto& [out, count] : last.members) {
        if (!Fits(other, out)) continue;
        const size_t choices = exchange ? other.members.size() : 1;
        for (size_t i = 0; i < choices; ++i) {
          const int32_t in = exchange ? other.members[i].first : -1;
          if (in == out || (in >= 0 && !Fits(last, in))) continue;
          if (Bound(other, in, out) >= worst || Bound(last, out, in) >= worst) continue;
          if (evaluations_left_ <= 0) return best;
          GroupPlan with = Changed(other, in, out);
          if (with.seconds >= worst) continue;
          GroupPlan from = Changed(last, out, in);
          if (from.seconds >= worst) continue;
          worst = std::max(with.seconds, from.seconds);
          best = Change{std::move(from), &other, std::move(with), worst};
        }
      }
    }
    return best;
  }

  const SweepProblem& problem_;
  const SweepOptions options_;
  std::vector<GroupPlan> groups_;
  int64_t evaluations_left_ = std::numeric_limits<int64_t>::max();
};

// Falling sequences of degrees that leave no room for a further group.
void AllCuts(const SweepProblem& problem, int left, size_t most, Cut* cut, std::vector<Cut>* cuts) {
  if (cuts->size() > kCutsMax) return;
  bool any = false;
  for (size_t d = most; d-- > 0;) {
    const SweepProblem::Degree& degree = problem.degrees()[d];
    if (degree.gpus > left || degree.capacity_bytes < 0) continue;
    any = true;
    cut->push_back(&degree);
    AllCuts(problem, left - degree.gpus, d + 1, cut, cuts);
    cut->pop_back();
  }
  if (!any && !cut->empty()) cuts->push_back(*cut);
}

// One degree, or two: 0, 1, 2, 4, .. groups of the larger, the rest of the smaller.
std::vector<Cut> FewCuts(const SweepProblem& problem) {
  std::vector<Cut> cuts;
  const auto& degrees = problem.degrees();
  for (size_t small = 0; small < degrees.size(); ++small) {
    for (size_t large = small; large < degrees.size(); ++large) {
      for (int groups = 1; groups * degrees[large].gpus <= problem.gpus(); groups *= 2) {
        const int rest = problem.gpus() - groups * degrees[large].gpus;
        Cut cut(groups, &degrees[large]);
        cut.insert(cut.end(), rest / degrees[small].gpus, &degrees[small]);
        cuts.push_back(std::move(cut));
      }
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  // Those of one degree first, then those of few groups, as far as filling them is affordable.
  std::stable_sort(cuts.begin(), cuts.end(), [](const Cut& a, const Cut& b) {
    return std::make_pair(a.front() != a.back(), a.size()) <
           std::make_pair(b.front() != b.back(), b.size());
  });
  size_t configurations = 0;
  for (int32_t count : problem.All()) configurations += static_cast<size_t>(count);
  size_t work = 0, kept = 0;
  while (kept < cuts.size() &&
         (kept < degrees.size() || work + cuts[kept].size() * configurations <= kFillWorkMax)) {
    work += cuts[kept++].size() * configurations;
  }
  cuts.resize(kept);
  return cuts;
}

std::vector<Cut> CutsOf(const SweepProblem& problem) {
  std::vector<Cut> cuts;
  Cut cut;
  AllCuts(problem, problem.gpus(), problem.degrees().size(), &cut, &cuts);
  if (cuts.size() > kCutsMax) cuts = FewCuts(problem);
  // Every kind needs a group that holds it.
  const int64_t needed =
      std::max_element(problem.kinds().begin(), problem.kinds().end(),
                       [](const auto& a, const auto& b) { return a.bytes < b.bytes; })
          ->bytes;
  std::erase_if(cuts, [&](const Cut& entry) {
    return entry.front()->capacity_bytes < needed;  // most GPUs, most memory, are in front
  });
  return cuts;
}

}  // namespace

SweepPlan PlanSweep(const SweepProblem& problem, const SweepOptions& options) {
  const double enough = problem.LowerBoundSeconds() * (1 + kGain);
  std::vector<std::unique_ptr<Search>> searches;
  const auto best_first = [&searches](size_t kept) {
    std::stable_sort(searches.begin(), searches.end(),
                     [](const auto& a, const auto& b) { return a->makespan() < b->makespan(); });
    searches.resize(std::min(searches.size(), kept));
  };
  for (const Cut& cut : CutsOf(problem)) {
    searches.push_back(std::make_unique<Search>(problem, options, cut));
    searches.back()->Fill();
  }
  assert(!searches.empty());  // the largest degree holds every configuration
  best_first(kCutsRefilled);
  for (size_t i = 0, filled = searches.size(); i < filled; ++i) {
    // The longest configurations first into the largest groups, and first into the smallest.
    const Cut cut = searches[i]->cut();
    for (const Cut& order : {cut, Cut(cut.rbegin(), cut.rend())}) {
      searches.push_back(std::make_unique<Search>(problem, options, order));
      searches.back()->Fill();
      searches.back()->Refill(problem.LowerBoundSeconds());
    }
  }
  const int64_t half = options.evaluations_max / 2;
  for (auto& search : searches) {
    search->Improve(half / static_cast<int64_t>(searches.size()), enough);
  }
  best_first(kCutsKept);
  for (auto& search : searches) {
    search->Improve(half / static_cast<int64_t>(searches.size()), enough);
  }
  best_first(1);
  SweepPlan best = searches.front()->Plan();
  if (!RulesAffordable(problem)) return best;
  for (SweepRule rule : {SweepRule::kMostThroughput, SweepRule::kLeastMakespan}) {
    SweepPlan plan = PlanByThroughput(problem, rule, kDtmNodesMax / 10);
    if (plan.makespan_s < best.makespan_s * (1 - kGain)) best = std::move(plan);
  }
  return best;
}

}  // namespace lorad::planner
