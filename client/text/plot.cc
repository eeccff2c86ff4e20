#include "client/text/plot.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "client/text/table.h"

namespace lorad::client {
namespace {

// What is drawn: the least and the largest of both axes.
struct Range {
  std::int64_t first_step = std::numeric_limits<std::int64_t>::max(), last_step = 0;
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
};

Range RangeOf(const std::vector<Curve>& curves) {
  Range range;
  for (const Curve& curve : curves) {
    for (const auto& [step, value] : curve.points) {
      if (!std::isfinite(value)) continue;
      range.first_step = std::min(range.first_step, step);
      range.last_step = std::max(range.last_step, step);
      range.least = std::min(range.least, value);
      range.most = std::max(range.most, value);
    }
  }
  return range;
}

// Where a share of 0 to 1 lies among so many places.
std::size_t PlaceOf(double share, std::size_t places) {
  return static_cast<std::size_t>(std::lround(share * static_cast<double>(places - 1)));
}

void Draw(const Curve& curve, const Range& range, std::vector<std::string>& grid) {
  const std::size_t width = grid[0].size();
  std::vector<double> sums(width, 0);
  std::vector<int> counts(width, 0);
  const double steps = static_cast<double>(range.last_step - range.first_step);
  for (const auto& [step, value] : curve.points) {
    if (!std::isfinite(value)) continue;
    const double share = steps > 0 ? static_cast<double>(step - range.first_step) / steps : 0;
    const std::size_t column = PlaceOf(share, width);
    sums[column] += value;
    ++counts[column];
  }
  for (std::size_t column = 0; column < width; ++column) {
    if (counts[column] == 0) continue;
    const double value = sums[column] / counts[column];
    const double height = range.most - range.least;
    const double share = height > 0 ? (range.most - value) / height : 0.5;
    grid[PlaceOf(share, grid.size())][column] = curve.mark;
  }
}

}  // namespace

std::vector<std::string> PlotLines(const std::vector<Curve>& curves, int columns, int rows) {
  const Range range = RangeOf(curves);
  if (range.least > range.most) return {};
  const std::vector<std::string> labels = {
      LossText(range.most), LossText((range.most + range.least) / 2), LossText(range.least)};
  std::size_t margin = 0;
  for (const std::string& label : labels) margin = std::max(margin, label.size());
  const std::size_t height = static_cast<std::size_t>(rows) - 1;  // the steps take a line
  const auto all = static_cast<std::size_t>(columns);
  const std::size_t width = all > margin + 12 ? all - margin - 2 : 10;
  std::vector<std::string> grid(height, std::string(width, ' '));
  for (const Curve& curve : curves) Draw(curve, range, grid);
  std::vector<std::string> lines;
  for (std::size_t row = 0; row < height; ++row) {
    const std::string label = row == 0            ? labels[0]
                              : row == height - 1 ? labels[2]
                              : row == height / 2 ? labels[1]
                                                  : "";
    std::string line =
        absl::StrCat(std::string(margin - label.size(), ' '), label, " |", grid[row]);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.push_back(std::move(line));
  }
  const std::string first = absl::StrCat("step ", range.first_step);
  const std::string last = absl::StrCat(range.last_step);
  const std::size_t used = first.size() + last.size();
  lines.push_back(absl::StrCat(std::string(margin + 2, ' '), first,
                               std::string(width > used ? width - used : 1, ' '), last));
  return lines;
}

std::string Sparkline(const std::vector<std::pair<std::int64_t, double>>& points, int columns,
                      bool utf8) {
  static constexpr std::array<const char*, 8> kBlocks = {"▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
  static constexpr std::array<const char*, 8> kLetters = {"_", ".", "-", "~", "=", "+", "*", "#"};
  std::vector<double> values;
  for (const auto& [step, value] : points) {
    if (std::isfinite(value)) values.push_back(value);
  }
  const std::size_t width = std::min(values.size(), static_cast<std::size_t>(std::max(columns, 0)));
  std::vector<double> means;
  for (std::size_t i = 0; i < width; ++i) {
    const std::size_t begin = i * values.size() / width, end = (i + 1) * values.size() / width;
    double sum = 0;
    for (std::size_t at = begin; at < end; ++at) sum += values[at];
    means.push_back(sum / static_cast<double>(end - begin));
  }
  if (means.empty()) return "";
  const auto [least, most] = std::ranges::minmax(means);
  std::string line;
  for (const double mean : means) {
    const double share = most > least ? (mean - least) / (most - least) : 0.5;
    line += (utf8 ? kBlocks : kLetters)[PlaceOf(share, kBlocks.size())];
  }
  return line;
}

}  // namespace lorad::client
