// The packing program by bin completion: branch and bound on whole bins instead of on single
// assignments, which for these programs closes in milliseconds what assignment variables do not
// close in seconds (they have K! equal solutions and a relaxation no better than sum / C).
//
// Samples fall in length. The longest that is left opens the next bin; the branches are the maximal
// sets of other samples that fill the bin up, the fullest first. A branch ends where what is left
// cannot go into the bins that are left: sum_a ceil(left_a / P) P > (bins left) C. Rounds widen
// the branching (1, 3, 10 bins tried at a place, then all), so that a bad first bin costs little;
// the round that tries all and ends has proved its answer.
// Korf, "An improved algorithm for optimal bin packing" (IJCAI 2003); Fleszar and Hindi, "New
// heuristics for one-dimensional bin-packing" (2002) for filling a bin by least slack.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "planner/window/pack.h"

namespace lorad::planner {

struct PackSearchLimits {
  int64_t nodes = 1'000'000;  // samples looked at while filling bins: some 5 ns each
  std::function<bool()> cancelled = nullptr;
};

struct PackSearchResult {
  enum class Status { kFound, kNone, kLimit, kCancelled };
  Status status = Status::kLimit;  // kNone: proved that there is none
  Packing packing;                 // of exactly `bins` bins where found, the last one special
  int64_t nodes = 0;
};

// A packing into `bins` bins whose last one holds at most `last_max` padded tokens (the others C).
// With `last_max` = C this asks whether `bins` suffice. More than 4,096 samples
// are left open (kLimit). REQUIRES: samples that
// PackFirstFitDecreasing takes. Exponential at worst; `nodes` bounds it.
PackSearchResult SearchPacking(const std::vector<Sample>& samples, const PackOptions& options,
                               int64_t bins, int64_t last_max, const PackSearchLimits& limits);

}  // namespace lorad::planner
