#include "planner/sweep/set.h"

#include <algorithm>
#include <cassert>

namespace lorad::planner {
namespace {

// max sum v_i x_i, sum w_i x_i <= capacity, 0 <= x_i <= count_i; all v_i > 0.
class Knapsack {
 public:
  struct Item {
    size_t kind = 0;
    double value = 0;
    int64_t bytes = 0;
    int32_t count = 0;
  };

  Knapsack(std::vector<Item> items, int64_t capacity, int64_t* nodes_left)
      : items_(std::move(items)), capacity_(capacity), nodes_left_(nodes_left) {
    std::stable_sort(items_.begin(), items_.end(), [](const Item& a, const Item& b) {
      return a.value * static_cast<double>(b.bytes) > b.value * static_cast<double>(a.bytes);
    });
  }

  // The bound by the fractional program from item `from` on.
  double Bound(size_t from, int64_t room) const {
    double value = 0;
    for (size_t i = from; i < items_.size(); ++i) {
      const int64_t taken = Most(items_[i], room);
      value += items_[i].value * static_cast<double>(taken);
      room -= taken * items_[i].bytes;
      if (taken < items_[i].count) {
        return value +
               items_[i].value * static_cast<double>(room) / static_cast<double>(items_[i].bytes);
      }
    }
    return value;
  }
  double Bound() const { return Bound(0, capacity_); }

  // Solutions worth `at_least` or less do not count.
  bool Solve(double at_least) {
    best_value_ = at_least;
    taken_.assign(items_.size(), 0);
    Search(0, capacity_, 0);
    return !best_.empty();
  }
  double value() const { return best_value_; }
  void Write(SweepCounts* counts) const {
    for (size_t i = 0; i < items_.size(); ++i) (*counts)[items_[i].kind] = best_[i];
  }

 private:
  static int64_t Most(const Item& item, int64_t room) {
    return item.bytes == 0 ? item.count : std::min<int64_t>(item.count, room / item.bytes);
  }

  void Search(size_t i, int64_t room, double value) {
    if (*nodes_left_ <= 0) return;
    --*nodes_left_;
    if (value > best_value_ * (1 + kLeast) && value > best_value_) {
      best_value_ = value;
      best_ = taken_;
    }
    if (i == items_.size()) return;
    for (int64_t take = Most(items_[i], room); take >= 0; --take) {
      const double with = value + items_[i].value * static_cast<double>(take);
      const int64_t left = room - take * items_[i].bytes;
      // Fewer of the densest item that is left only lowers the bound.
      if (with + Bound(i + 1, left) <= best_value_ * (1 + kLeast)) break;
      taken_[i] = static_cast<int32_t>(take);
      Search(i + 1, left, with);
    }
    taken_[i] = 0;
  }

  static constexpr double kLeast = 1e-12;  // relative: what rounding may add is no improvement
  std::vector<Item> items_;
  int64_t capacity_ = 0;
  int64_t* nodes_left_;
  double best_value_ = 0;
  std::vector<int32_t> taken_, best_;
};

// P(q); false where no set beats the ratio q.
bool SolveForRatio(const SweepProblem& problem, const SweepProblem::Degree& degree,
                   const SweepCounts& left, double q, int64_t* nodes, SweepCounts* counts) {
  const auto& kinds = problem.kinds();
  double best = 0;
  bool found = false;
  for (size_t first = 0; first < kinds.size(); ++first) {
    if (first > 0 && kinds[first].steps == kinds[first - 1].steps) continue;
    const double fixed = q * degree.fixed_s * static_cast<double>(kinds[first].steps);
    std::vector<Knapsack::Item> items;
    for (size_t k = first; k < kinds.size(); ++k) {
      const double value = static_cast<double>(kinds[k].rank) - q * degree.work_s[k];
      if (left[k] > 0 && value > 0 && kinds[k].bytes <= degree.capacity_bytes) {
        items.push_back({k, value, kinds[k].bytes, left[k]});
      }
    }
    Knapsack knapsack(std::move(items), degree.capacity_bytes, nodes);
    if (knapsack.Bound() <= fixed + best || !knapsack.Solve(fixed + best)) continue;
    best = knapsack.value() - fixed;
    counts->assign(kinds.size(), 0);
    knapsack.Write(counts);
    found = true;
  }
  return found;
}

}  // namespace

SweepSet MeasureSweepSet(const SweepProblem& problem, const SweepProblem::Degree& degree,
                         const SweepCounts& counts) {
  SweepSet set;
  set.gpus = degree.gpus;
  set.counts = counts;
  int64_t steps = 0;
  for (size_t k = 0; k < counts.size(); ++k) {
    if (counts[k] == 0) continue;
    const SweepProblem::Kind& kind = problem.kinds()[k];
    steps = std::max(steps, kind.steps);
    set.seconds += counts[k] * degree.work_s[k];
    set.bytes += counts[k] * kind.bytes;
    set.ranks += counts[k] * kind.rank;
  }
  set.seconds += degree.fixed_s * static_cast<double>(steps);
  set.ratio = static_cast<double>(set.ranks) / set.seconds;
  return set;
}

SweepSet BestSweepSet(const SweepProblem& problem, const SweepProblem::Degree& degree,
                      const SweepCounts& left, int64_t nodes_max) {
  assert(left.size() == problem.kinds().size());
  SweepSet best;
  best.gpus = degree.gpus;
  // The best single configuration starts the iteration.
  for (size_t k = 0; k < left.size(); ++k) {
    if (left[k] == 0 || problem.kinds()[k].bytes > degree.capacity_bytes) continue;
    SweepCounts one(left.size(), 0);
    one[k] = 1;
    SweepSet set = MeasureSweepSet(problem, degree, one);
    if (best.empty() || set.ratio > best.ratio) best = std::move(set);
  }
  if (best.empty()) return best;
  int64_t nodes = nodes_max;
  int iterations = 0;
  SweepCounts counts;
  while (SolveForRatio(problem, degree, left, best.ratio, &nodes, &counts)) {
    ++iterations;
    SweepSet set = MeasureSweepSet(problem, degree, counts);
    if (set.ratio <= best.ratio * (1 + 1e-12)) break;  // equal but for rounding
    best = std::move(set);
  }
  best.exact = nodes > 0;
  best.iterations = iterations;
  return best;
}

}  // namespace lorad::planner
