#include "planner/stages/cut.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Sums of a prefix of the blocks.
std::vector<double> Prefix(const std::vector<double>& block_ms) {
  std::vector<double> sums(block_ms.size() + 1, 0);
  for (size_t i = 0; i < block_ms.size(); ++i) sums[i + 1] = sums[i] + block_ms[i];
  return sums;
}

// Blocks as the dynamic programs below see them.
struct Row {
  std::vector<double> sums;  // of prefixes
  size_t stages = 0;
  const Reach& reach;

  size_t blocks() const { return sums.size() - 1; }
  double Ms(size_t first, size_t end) const { return sums[end] - sums[first]; }
  // Where stage `stage` may end at most if it begins with block `first`.
  size_t EndMax(size_t stage, size_t first) const {
    return reach.empty() ? blocks() : static_cast<size_t>(reach[stage][first]);
  }
};

// The least time that the slowest stage can have; infinite where no cut keeps to the reach.
double Bottleneck(const Row& row) {
  const size_t blocks = row.blocks();
  std::vector<double> best(blocks + 1, kInfinite);  // of blocks i.. in the stages looked at
  best[blocks] = 0;
  for (size_t stage = row.stages; stage-- > 0;) {
    std::vector<double> next(blocks + 1, kInfinite);
    for (size_t i = 0; i < blocks; ++i) {
      for (size_t j = i + 1; j <= row.EndMax(stage, i); ++j) {
        const double ms = row.Ms(i, j);
        if (ms > next[i]) break;
        next[i] = std::min(next[i], std::max(ms, best[j]));
      }
    }
    best = std::move(next);
  }
  return best[0];
}

// The cut with the least sum of squares of the stages' times, none above the bottleneck.
Cut MostEven(const Row& row, double bottleneck) {
  const size_t blocks = row.blocks();
  // least[s][i]: of blocks i.. in the stages from s on; end[s][i]: where stage s ends then.
  std::vector<std::vector<double>> least(row.stages + 1,
                                         std::vector<double>(blocks + 1, kInfinite));
  std::vector<std::vector<size_t>> end(row.stages, std::vector<size_t>(blocks, 0));
  least[row.stages][blocks] = 0;
  for (size_t s = row.stages; s-- > 0;) {
    for (size_t i = 0; i < blocks; ++i) {
      for (size_t j = i + 1; j <= row.EndMax(s, i); ++j) {
        const double ms = row.Ms(i, j);
        if (ms > bottleneck) break;
        const double squares = ms * ms + least[s + 1][j];
        if (squares < least[s][i]) least[s][i] = squares, end[s][i] = j;
      }
    }
  }
  Cut cut{.first = {0}, .stage_ms = {}};
  for (size_t s = 0; s < row.stages; ++s) {
    const auto at = static_cast<size_t>(cut.first.back());
    cut.stage_ms.push_back(row.Ms(at, end[s][at]));
    cut.first.push_back(static_cast<int>(end[s][at]));
  }
  return cut;
}

}  // namespace

absl::StatusOr<Cut> CutStages(const std::vector<double>& block_ms, int stages, const Reach& reach) {
  if (stages < 1 || block_ms.size() < static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(
        absl::StrCat(block_ms.size(), " blocks cannot be cut into ", stages, " stages"));
  }
  for (const double ms : block_ms) {
    if (std::isfinite(ms) && ms >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("a block takes ", ms, " ms"));
  }
  const Row row{Prefix(block_ms), static_cast<size_t>(stages), reach};
  const double bottleneck = Bottleneck(row);
  if (!std::isfinite(bottleneck)) {
    return absl::NotFoundError(absl::StrCat(block_ms.size(), " blocks in ", stages,
                                            " stages exceed the reach of one in every cut"));
  }
  return MostEven(row, bottleneck);
}

std::string ToText(const Cut& cut) {
  std::string text;
  for (size_t s = 0; s < cut.stage_ms.size(); ++s) {
    absl::StrAppendFormat(&text, "%s%d-%d %.6g ms", s == 0 ? "" : " | ", cut.first[s],
                          cut.first[s + 1] - 1, cut.stage_ms[s]);
  }
  return text;
}

}  // namespace lorad::planner
