#include "planner/pipeline/cut.h"

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

// The least time that the slowest stage can have. The first s - 1 stages' time rises with the
// border j before the last stage and the last one's falls: the best j is where they cross, and
// moves only to the right with i.
double Bottleneck(const std::vector<double>& sums, size_t stages) {
  std::vector<double> best = sums;  // of the first i blocks, s stages
  for (size_t s = 2; s <= stages; ++s) {
    std::vector<double> next(sums.size(), kInfinite);
    size_t j = s - 1;
    for (size_t i = s; i < sums.size(); ++i) {
      while (j + 1 < i && best[j + 1] <= sums[i] - sums[j + 1]) ++j;
      next[i] = std::max(best[j], sums[i] - sums[j]);
      if (j + 1 < i) next[i] = std::min(next[i], std::max(best[j + 1], sums[i] - sums[j + 1]));
    }
    best = std::move(next);
  }
  return best.back();
}

}  // namespace

absl::StatusOr<Cut> CutStages(const std::vector<double>& block_ms, int stages) {
  if (stages < 1 || block_ms.size() < static_cast<size_t>(stages)) {
    return absl::InvalidArgumentError(
        absl::StrCat(block_ms.size(), " blocks cannot be cut into ", stages, " stages"));
  }
  for (const double ms : block_ms) {
    if (std::isfinite(ms) && ms >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("a block takes ", ms, " ms"));
  }
  const size_t count = static_cast<size_t>(stages), blocks = block_ms.size();
  const std::vector<double> sums = Prefix(block_ms);
  const double bottleneck = Bottleneck(sums, count);
  // least[s][i]: sum of squares of blocks i.. in s stages, none above the bottleneck.
  std::vector<std::vector<double>> least(count + 1, std::vector<double>(blocks + 1, kInfinite));
  std::vector<std::vector<size_t>> end(count + 1, std::vector<size_t>(blocks + 1, 0));
  least[0][blocks] = 0;
  for (size_t s = 1; s <= count; ++s) {
    for (size_t i = 0; i < blocks; ++i) {
      for (size_t j = i + 1; j <= blocks; ++j) {
        const double ms = sums[j] - sums[i];
        if (ms > bottleneck) break;
        const double squares = ms * ms + least[s - 1][j];
        if (squares < least[s][i]) least[s][i] = squares, end[s][i] = j;
      }
    }
  }
  Cut cut;
  size_t at = 0;
  for (size_t s = count; s > 0; --s) {
    cut.first.push_back(static_cast<int>(at));
    cut.stage_ms.push_back(sums[end[s][at]] - sums[at]);
    at = end[s][at];
  }
  cut.first.push_back(static_cast<int>(at));
  return cut;
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
