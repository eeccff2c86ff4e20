// Curves of losses, of letters alone, so that any terminal shows them.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace lorad::client {

struct Curve {
  char mark = '*';
  std::vector<std::pair<std::int64_t, double>> points = {};  // (step, value), steps ascending
};

// The curves over each other, the last one in front, in `rows` lines of at most `columns` letters,
// with the values on the left and the steps below. Values that are not finite are left out. Where
// several points share a column its mean is drawn. Nothing to draw: no line.
// REQUIRES: columns >= 20, rows >= 4.
std::vector<std::string> PlotLines(const std::vector<Curve>& curves, int columns, int rows);

// One line of at most so many columns: the means of neighbouring points, from low to high as
// "▁▂▃▄▅▆▇█", or where the terminal has no `utf8` as "_.-~=+*#". Empty where nothing is finite.
std::string Sparkline(const std::vector<std::pair<std::int64_t, double>>& points, int columns,
                      bool utf8);

}  // namespace lorad::client
