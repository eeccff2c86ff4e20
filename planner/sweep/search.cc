// Makespan by local search over nested groups of GPUs.
#include <algorithm>
#include <cassert>
#include <iterator>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include "planner/sweep/groups.h"
#include "planner/sweep/plan.h"

namespace lorad::planner {
namespace {

// Starts that are filled again by bisection, and those that are searched to the end.
constexpr size_t kStartsRefilled = 10;
constexpr size_t kStartsKept = 4;
// Steps in which a group is filled.
constexpr size_t kChunks = 32;
// Larger groups count as several evaluations.
constexpr int64_t kMembersAnEvaluation = 16;
// Bisections of the target of one fill: a thousandth of the range.
constexpr int kBisections = 10;
// Groups times configurations, summed over the starts.
constexpr size_t kFillWorkMax = 1'000'000;
// The search ends after this many shakes in a row without gain, each of so many moves.
constexpr int kShakesMax = 60;
constexpr int kShakeMoves = 3;
// Less is rounding.
constexpr double kGain = 1e-9;

// Groups side by side that hold all GPUs but a rest: those to be filled first.
using Start = std::vector<int>;

class Search {
 public:
  Search(const SweepProblem& problem, bool replace, Start start)
      : problem_(&problem), groups_(problem, replace), start_(std::move(start)) {}

  const Start& start() const { return start_; }
  double makespan() const { return groups_.Makespan(); }
  SweepPlan Plan() const { return groups_.Plan(); }

  // Longest first, each to the group where it ends first.
  void Fill() {
    for (const std::vector<int32_t>& chunk : Chunks()) {
      int best = -1;
      double best_end = 0;
      SweepGroup best_with;
      for (int group : GroupsFor(chunk)) {
        const double bound = groups_.BoundSeconds(group, -1, chunk[0]);
        if (best >= 0 && groups_.EndWith(group, bound) >= best_end) continue;
        SweepGroup with = groups_.With(group, chunk);
        const double end = groups_.EndWith(group, with.seconds);
        if (best >= 0 && end >= best_end) continue;
        best = group;
        best_end = end;
        best_with = std::move(with);
      }
      assert(best >= 0);
      groups_.Set(best, std::move(best_with));
    }
  }

  // The least target that FillWithin meets between `low` and what there is now; nothing changes if
  // it meets none.
  void Refill(double low) {
    SweepGroups best = groups_;
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
    for (int i = 0; i < std::ssize(groups_.list()); ++i) groups_.Set(i, groups_.Changed(i, -1, -1));
    Descend(enough);
  }

  // Goes on from there with shakes: some random moves and another descent, kept where it ends
  // earlier.
  void ImproveAndShake(int64_t evaluations, double enough) {
    Improve(evaluations, enough);
    std::mt19937 random(1);
    SweepGroups best = groups_;
    for (int i = 0; i < kShakesMax && evaluations_left_ > 0 && makespan() > enough; ++i) {
      Shake(random);
      Descend(enough);
      if (makespan() < best.Makespan() * (1 - kGain)) {
        best = groups_;
        i = -1;
      } else {
        groups_ = best;
      }
    }
    groups_ = std::move(best);
  }

 private:
  struct Change {
    int from, to;
    SweepGroup from_with, to_with;
  };

  // Configurations in their order, as many at a time as leave each group kChunks of them: few
  // groups with many members each are filled in few steps.
  std::vector<std::vector<int32_t>> Chunks() const {
    std::vector<int32_t> list;
    for (size_t k = 0; k < problem_->kinds().size(); ++k) {
      list.insert(list.end(), problem_->kinds()[k].configurations.size(), static_cast<int32_t>(k));
    }
    const size_t size = std::max<size_t>(1, list.size() / (start_.size() * kChunks));
    std::vector<std::vector<int32_t>> chunks;
    for (size_t i = 0; i < list.size(); i += size) {
      chunks.emplace_back(list.begin() + static_cast<ptrdiff_t>(i),
                          list.begin() + static_cast<ptrdiff_t>(std::min(i + size, list.size())));
    }
    return chunks;
  }

  // Those of the start that hold the chunk; where none does, the smallest that do.
  std::vector<int> GroupsFor(const std::vector<int32_t>& chunk) const {
    const auto holds = [&](int group) {
      return std::all_of(chunk.begin(), chunk.end(),
                         [&](int32_t kind) { return groups_.Fits(group, kind); });
    };
    std::vector<int> found;
    std::copy_if(start_.begin(), start_.end(), std::back_inserter(found), holds);
    if (!found.empty()) return found;
    int gpus = 0;
    for (int i = 0; i < std::ssize(groups_.list()); ++i) {
      if (!holds(i)) continue;
      const int its = groups_.list()[i].degree->gpus;
      if (found.empty() || its < gpus) found.clear(), gpus = its;
      if (its == gpus) found.push_back(i);
    }
    return found;
  }

  // Longest first, each to the first group that ends within `target_s` with it; false where one
  // finds none. Short configurations so gather in groups of their own, which long ones would make
  // run idle iterations.
  bool FillWithin(double target_s) {
    groups_.Clear();
    for (const std::vector<int32_t>& chunk : Chunks()) {
      const std::vector<int> open = GroupsFor(chunk);
      const bool placed = std::any_of(open.begin(), open.end(), [&](int group) {
        if (groups_.EndWith(group, groups_.BoundSeconds(group, -1, chunk[0])) > target_s) {
          return false;
        }
        SweepGroup with = groups_.With(group, chunk);
        if (groups_.EndWith(group, with.seconds) > target_s) return false;
        groups_.Set(group, std::move(with));
        return true;
      });
      if (!placed) return false;
    }
    return true;
  }

  void Descend(double enough) {
    while (evaluations_left_ > 0 && makespan() > enough) {
      std::optional<Change> change = BestChange(/*exchange=*/false);
      if (!change) change = BestChange(/*exchange=*/true);
      if (!change) return;
      groups_.Set(change->from, std::move(change->from_with));
      groups_.Set(change->to, std::move(change->to_with));
    }
  }

  void Shake(std::mt19937& random) {
    const auto one_of = [&](size_t count) { return static_cast<size_t>(random() % count); };
    for (int i = 0; i < kShakeMoves; ++i) {
      std::vector<int> busy;
      for (int g = 0; g < std::ssize(groups_.list()); ++g) {
        if (!groups_.list()[g].members.empty()) busy.push_back(g);
      }
      const int from = busy[one_of(busy.size())];
      const SweepMembers& members = groups_.list()[from].members;
      const int32_t kind = members[one_of(members.size())].first;
      const int to = i % 2 == 0 ? busy[one_of(busy.size())] : start_[one_of(start_.size())];
      if (to == from || !groups_.Fits(to, kind)) continue;
      groups_.Set(from, Evaluate(from, kind, -1));
      groups_.Set(to, Evaluate(to, -1, kind));
    }
  }

  SweepGroup Evaluate(int group, int32_t out, int32_t in) {
    evaluations_left_ -= 1 + std::ssize(groups_.list()[group].members) / kMembersAnEvaluation;
    return groups_.Changed(group, out, in);
  }

  // Groups one within the other that end last, the outermost first.
  std::vector<int> Critical() const {
    const auto& list = groups_.list();
    const double end = makespan() * (1 - kGain);
    std::vector<int> path;
    for (int at = 0, stop = static_cast<int>(std::ssize(list)); at < stop;) {
      if (groups_.EndWith(at, list[at].seconds) < end) {
        at += list[at].groups;
        continue;
      }
      path.push_back(at);
      stop = at + list[at].groups;
      ++at;
    }
    return path;
  }

  bool Nested(int a, int b) const {
    const auto& list = groups_.list();
    return a < b ? b < a + list[a].groups : a < b + list[b].groups;
  }

  // Whether changes between `from` and either of the two come to the same.
  bool Alike(int from, int a, int b) const {
    const SweepGroup& one = groups_.list()[a];
    const SweepGroup& other = groups_.list()[b];
    return one.seconds == other.seconds && one.degree == other.degree &&
           one.begin_s == other.begin_s && one.rest_s == other.rest_s &&
           one.members == other.members &&
           (one.parent == other.parent || (!Nested(from, a) && !Nested(from, b)));
  }

  // One configuration of a group that ends last goes to another group, or is exchanged for one of
  // it: where all that follows on either ends earlier than the sweep does now, and of these changes
  // the one after which it ends first.
  std::optional<Change> BestChange(bool exchange) {
    std::optional<Change> best;
    double worst = makespan() * (1 - kGain);
    for (int from : Critical()) {
      std::vector<int> seen;
      for (int to = 0; to < std::ssize(groups_.list()); ++to) {
        if (to == from || groups_.list()[from].members.empty() ||
            (exchange && groups_.list()[to].members.empty()) ||
            std::any_of(seen.begin(), seen.end(), [&](int s) { return Alike(from, s, to); })) {
          continue;
        }
        seen.push_back(to);
        BestChangeBetween(from, to, exchange, &worst, &best);
      }
    }
    return best;
  }

  void BestChangeBetween(int from, int to, bool exchange, double* worst,
                         std::optional<Change>* best) {
    static const SweepMembers kNone = {{-1, 1}};
    for (const auto& [out, out_count] : groups_.list()[from].members) {
      if (!groups_.Fits(to, out)) continue;
      for (const auto& [in, in_count] : exchange ? groups_.list()[to].members : kNone) {
        if (in == out || (in >= 0 && !groups_.Fits(from, in))) continue;
        const double from_bound = groups_.BoundSeconds(from, out, in);
        const double to_bound = groups_.BoundSeconds(to, in, out);
        if (groups_.EndWith(from, from_bound, to, to_bound) >= *worst) continue;
        if (evaluations_left_ <= 0) return;
        SweepGroup to_with = Evaluate(to, in, out);
        if (groups_.EndWith(from, from_bound, to, to_with.seconds) >= *worst) continue;
        SweepGroup from_with = Evaluate(from, out, in);
        const double end = groups_.EndWith(from, from_with.seconds, to, to_with.seconds);
        if (end >= *worst) continue;
        *worst = end;
        *best = Change{from, to, std::move(from_with), std::move(to_with)};
      }
    }
  }

  const SweepProblem* problem_;
  SweepGroups groups_;
  Start start_;
  int64_t evaluations_left_ = 0;
};

// The groups of at most `large` GPUs that begin before `boundary`, of at most `small` from there.
Start StartOf(const std::vector<SweepGroup>& list, int large, int small, int boundary) {
  Start start;
  for (int i = 0; i < std::ssize(list);) {
    if (list[i].degree->gpus > (list[i].first_gpu < boundary ? large : small)) {
      ++i;
    } else {
      start.push_back(i);
      i += list[i].groups;
    }
  }
  return start;
}

// One degree; or two, with 1, 2, 3, 4, 6, .. groups of the larger.
std::vector<Start> StartsOf(const SweepProblem& problem) {
  const SweepGroups groups(problem, false);
  std::set<Start> seen;
  std::vector<Start> starts;
  const auto add = [&](int large, int small, int boundary) {
    Start start = StartOf(groups.list(), large, small, boundary);
    if (seen.insert(start).second) starts.push_back(std::move(start));
  };
  std::vector<int> degrees;
  for (const SweepProblem::Degree& degree : problem.degrees()) {
    if (degree.capacity_bytes >= 0) degrees.push_back(degree.gpus);
  }
  for (int degree : degrees) add(degree, degree, 0);
  const size_t uniform = starts.size();
  for (int small : degrees) {
    for (int large : degrees) {
      if (large <= small) continue;
      for (int count = 1; count * large < problem.gpus(); count += 1 + count / 4) {
        add(large, small, count * large);
      }
    }
  }
  // Those of few groups first, as far as filling them is affordable.
  std::stable_sort(starts.begin() + static_cast<ptrdiff_t>(uniform), starts.end(),
                   [](const Start& a, const Start& b) { return a.size() < b.size(); });
  size_t configurations = 0;
  for (int32_t count : problem.All()) configurations += static_cast<size_t>(count);
  size_t work = 0, kept = 0;
  while (kept < starts.size() &&
         (kept < uniform || work + starts[kept].size() * configurations <= kFillWorkMax)) {
    work += starts[kept++].size() * configurations;
  }
  starts.resize(kept);
  return starts;
}

}  // namespace

SweepPlan PlanSweep(const SweepProblem& problem, const SweepOptions& options) {
  const double enough = problem.LowerBoundSeconds() * (1 + kGain);
  std::vector<Search> searches;
  const auto best_first = [&searches](size_t kept) {
    std::stable_sort(searches.begin(), searches.end(),
                     [](const Search& a, const Search& b) { return a.makespan() < b.makespan(); });
    if (searches.size() <= kept) return;
    searches.erase(searches.begin() + static_cast<ptrdiff_t>(kept), searches.end());
  };
  for (Start& start : StartsOf(problem)) {
    searches.emplace_back(problem, options.replace, std::move(start)).Fill();
  }
  best_first(kStartsRefilled);
  for (size_t i = 0, filled = searches.size(); i < filled; ++i) {
    // The longest configurations first into the first groups, and first into the last.
    Start order = searches[i].start();
    for (int turn = 0; turn < 2; ++turn) {
      Search& search = searches.emplace_back(problem, options.replace, order);
      search.Fill();
      search.Refill(problem.LowerBoundSeconds());
      std::reverse(order.begin(), order.end());
    }
  }
  const int64_t third = options.evaluations_max / 3;
  for (Search& search : searches) search.Improve(third / std::ssize(searches), enough);
  best_first(kStartsKept);
  for (Search& search : searches) search.Improve(third / std::ssize(searches), enough);
  best_first(1);
  searches.front().ImproveAndShake(third, enough);
  SweepPlan best = searches.front().Plan();
  if (!RulesAffordable(problem)) return best;
  for (SweepRule rule : {SweepRule::kMostThroughput, SweepRule::kLeastMakespan}) {
    SweepPlan plan = PlanByThroughput(problem, rule, kDtmNodesMax / 10);
    if (plan.makespan_s < best.makespan_s * (1 - kGain)) best = std::move(plan);
  }
  return best;
}

}  // namespace lorad::planner
