#include "planner/replicas/balance.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>
#include <utility>

namespace lorad::planner {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEpsilon = 1e-10;
constexpr int kPivotsBeforeBland = 10;  // a row
constexpr int kPivotsMax = 20;          // a row

// Columns: a share of bucket j in group i (0 to 1, so that all columns are of the same size), then
// a slack for each group, then the right side. Rows: buckets, then groups. T is always basic; its
// row is the objective.
class Simplex {
 public:
  explicit Simplex(const BalanceProblem& problem) : problem_(problem) {
    for (size_t j = 0; j < problem.sequences.size(); ++j) {
      if (problem.sequences[j] > 0) buckets_.push_back(static_cast<int>(j));
    }
    groups_ = static_cast<int>(problem.base_ms.size());
    for (size_t r = 0; r < buckets_.size(); ++r) {
      for (int i = 0; i < groups_; ++i) {
        if (std::isfinite(problem.cost_ms[i][buckets_[r]])) {
          columns_.push_back({i, static_cast<int>(r)});
        }
      }
    }
    slack_ = static_cast<int>(columns_.size());
    right_ = slack_ + groups_;
    for (double ms : problem.base_ms) unit_ms_ = std::max(unit_ms_, ms);
    for (const Column& column : columns_) unit_ms_ = std::max(unit_ms_, CostMs(column));
  }

  Balance Solve() {
    if (!Start()) {
      Balance none;
      none.ms = none.bound_ms = kInfinity;
      return none;
    }
    const int rows = static_cast<int>(table_.size());
    int pivots = 0;
    while (pivots < kPivotsMax * rows) {
      const int column = Entering(pivots > kPivotsBeforeBland * rows);
      if (column < 0) break;
      const int row = Leaving(column);
      if (row < 0) break;
      Pivot(row, column);
      ++pivots;
    }
    return Read();
  }

 private:
  struct Column {
    int group;
    int bucket;  // row
  };

  double CostMs(const Column& column) const {
    const int j = buckets_[column.bucket];
    return problem_.cost_ms[column.group][j] * problem_.sequences[j] /
           problem_.replicas[column.group];
  }
  // In units, so that every entry of the table is about 1 or less.
  double Cost(const Column& column) const { return CostMs(column) / unit_ms_; }

  // Longest buckets first, each to the group that is then the least busy.
  bool Start() {
    const int rows = static_cast<int>(buckets_.size()) + groups_;
    table_.assign(rows, std::vector<double>(right_ + 1, 0));
    basic_.assign(rows, -1);
    std::vector<double> load;
    for (double ms : problem_.base_ms) load.push_back(ms / unit_ms_);
    for (int r = static_cast<int>(buckets_.size()) - 1; r >= 0; --r) {
      int best = -1;
      double best_load = kInfinity;
      for (int c = 0; c < slack_; ++c) {
        if (columns_[c].bucket != r) continue;
        const double after = load[columns_[c].group] + Cost(columns_[c]);
        if (after < best_load) {
          best_load = after;
          best = c;
        }
      }
      if (best < 0) return false;
      load[columns_[best].group] = best_load;
      basic_[r] = best;
    }
    for (int c = 0; c < slack_; ++c) {
      const auto [group, r] = columns_[c];
      table_[r][c] = 1;
      table_[r][right_] = 1;
      table_[GroupRow(group)][c] = Cost(columns_[c]);
    }
    for (int i = 0; i < groups_; ++i) {
      table_[GroupRow(i)][slack_ + i] = 1;  // - T
      table_[GroupRow(i)][right_] = -problem_.base_ms[i] / unit_ms_;
      basic_[GroupRow(i)] = slack_ + i;
    }
    for (size_t r = 0; r < buckets_.size(); ++r) {
      AddRow(GroupRow(columns_[basic_[r]].group), static_cast<int>(r), -Cost(columns_[basic_[r]]));
    }
    MakeObjective(load);
    return true;
  }

  // T enters the basis in the row of the busiest group.
  void MakeObjective(const std::vector<double>& load) {
    const int busiest = static_cast<int>(std::max_element(load.begin(), load.end()) - load.begin());
    objective_ = GroupRow(busiest);
    for (double& value : table_[objective_]) value = -value;
    basic_[objective_] = -1;
    for (int i = 0; i < groups_; ++i) {
      if (i != busiest) AddRow(GroupRow(i), objective_, 1);
    }
  }

  int GroupRow(int group) const { return static_cast<int>(buckets_.size()) + group; }

  void AddRow(int to, int from, double factor) {
    for (int c = 0; c <= right_; ++c) table_[to][c] += factor * table_[from][c];
  }

  // T = right - sum of entries x: a positive entry lets T fall.
  int Entering(bool bland) const {
    int best = -1;
    double best_entry = 0;
    for (int c = 0; c < right_; ++c) {
      const double entry = table_[objective_][c];
      if (entry <= kEpsilon) continue;
      if (bland) return c;
      if (entry > best_entry) {
        best_entry = entry;
        best = c;
      }
    }
    return best;
  }

  int Leaving(int column) const {
    int best = -1;
    double best_ratio = kInfinity;
    for (int row = 0; row < static_cast<int>(table_.size()); ++row) {
      if (row == objective_ || table_[row][column] <= kEpsilon) continue;
      const double ratio = std::max(0.0, table_[row][right_]) / table_[row][column];
      if (ratio < best_ratio || (ratio == best_ratio && basic_[row] < basic_[best])) {
        best_ratio = ratio;
        best = row;
      }
    }
    return best;
  }

  void Pivot(int row, int column) {
    const double pivot = table_[row][column];
    for (double& value : table_[row]) value /= pivot;
    for (int other = 0; other < static_cast<int>(table_.size()); ++other) {
      const double factor = table_[other][column];
      if (other != row && factor != 0) AddRow(other, row, -factor);
    }
    basic_[row] = column;
  }

  Balance Read() const {
    Balance balance;
    balance.ms = table_[objective_][right_] * unit_ms_;
    balance.sequences.assign(groups_, std::vector<double>(problem_.sequences.size(), 0));
    for (size_t row = 0; row < table_.size(); ++row) {
      if (basic_[row] < 0 || basic_[row] >= slack_) continue;
      const Column& column = columns_[basic_[row]];
      const int j = buckets_[column.bucket];
      balance.sequences[column.group][j] =
          std::clamp(table_[row][right_], 0.0, 1.0) * problem_.sequences[j];
    }
    double sum = 0;
    for (int i = 0; i < groups_; ++i) {
      balance.weights.push_back(std::max(0.0, -table_[objective_][slack_ + i]));
      sum += balance.weights.back();
    }
    for (double& weight : balance.weights) weight = sum > 0 ? weight / sum : 1.0 / groups_;
    balance.bound_ms = BalanceBound(problem_, balance.weights);
    return balance;
  }

  const BalanceProblem& problem_;
  std::vector<int> buckets_;  // not empty
  int groups_ = 0;
  std::vector<Column> columns_;
  double unit_ms_ = 1e-9;
  int slack_ = 0, right_ = 0, objective_ = 0;
  std::vector<std::vector<double>> table_;
  std::vector<int> basic_;  // column of each row; -1: T
};

}  // namespace

Balance BalanceLoads(const BalanceProblem& problem) {
  assert(!problem.base_ms.empty() && problem.base_ms.size() == problem.replicas.size() &&
         problem.base_ms.size() == problem.cost_ms.size());
  return Simplex(problem).Solve();
}

double BalanceBound(const BalanceProblem& problem, const std::vector<double>& weights) {
  double bound = 0;
  for (size_t i = 0; i < weights.size(); ++i) bound += weights[i] * problem.base_ms[i];
  for (size_t j = 0; j < problem.sequences.size(); ++j) {
    if (problem.sequences[j] <= 0) continue;
    double least = kInfinity;
    for (size_t i = 0; i < weights.size(); ++i) {
      const double cost = problem.cost_ms[i][j];
      if (std::isfinite(cost)) least = std::min(least, weights[i] / problem.replicas[i] * cost);
    }
    bound += problem.sequences[j] * least;
  }
  return bound;
}

}  // namespace lorad::planner
