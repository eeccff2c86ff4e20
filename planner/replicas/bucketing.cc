#include "planner/replicas/bucketing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::planner {
namespace {

constexpr int64_t kInfinity = std::numeric_limits<int64_t>::max();
constexpr int64_t kTokensMax = int64_t{1} << 53;  // of all sequences, padded

struct Interval {
  int64_t boundary = 0;
  int64_t sequences = 0;  // no longer than it: a running sum
};

absl::Status Check(const std::vector<int64_t>& lengths) {
  if (lengths.empty()) return absl::InvalidArgumentError("no sequence to put into buckets");
  for (size_t i = 0; i < lengths.size(); ++i) {
    if (lengths[i] < 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", i, " has length ", lengths[i], "; it has to be 1 or more"));
    }
    if (lengths[i] > kTokensMax / static_cast<int64_t>(lengths.size()) / 2) {
      return absl::InvalidArgumentError(
          absl::StrCat("sequence ", i, " of length ", lengths[i], ": the sum would overflow"));
    }
  }
  return absl::OkStatus();
}

class BestBoundaries {
 public:
  BestBoundaries(std::vector<Interval> intervals, int buckets)
      : intervals_(std::move(intervals)), buckets_(buckets) {}

  std::vector<int64_t> Choose() {
    const size_t size = intervals_.size() + 1;
    from_.assign(buckets_ + 1, std::vector<int>(size, 0));
    previous_.assign(size, kInfinity);
    previous_[0] = 0;
    int best_buckets = 0;
    int64_t best = kInfinity;
    for (int j = 1; j <= buckets_; ++j) {
      current_.assign(size, kInfinity);
      Fill(j, 1, static_cast<int>(size) - 1, 0, static_cast<int>(size) - 2);
      std::swap(previous_, current_);
      if (previous_.back() < best) {
        best = previous_.back();
        best_buckets = j;
      }
    }
    std::vector<int64_t> boundaries;
    for (int i = static_cast<int>(size) - 1, j = best_buckets; i > 0; i = from_[j--][i]) {
      boundaries.push_back(intervals_[i - 1].boundary);
    }
    std::reverse(boundaries.begin(), boundaries.end());
    return boundaries;
  }

 private:
  // State[low..high][j], the best i' being among from_low..from_high: the middle first, which
  // halves the candidates of either side.
  void Fill(int j, int low, int high, int from_low, int from_high) {
    if (low > high) return;
    const int middle = (low + high) / 2;
    int best_from = from_low;
    for (int from = from_low; from <= std::min(from_high, middle - 1); ++from) {
      if (previous_[from] == kInfinity) continue;
      const int64_t before = from == 0 ? 0 : intervals_[from - 1].sequences;
      const Interval& last = intervals_[middle - 1];
      const int64_t cost = previous_[from] + (last.sequences - before) * last.boundary;
      if (cost < current_[middle]) {
        current_[middle] = cost;
        best_from = from;
      }
    }
    from_[j][middle] = best_from;
    Fill(j, low, middle - 1, from_low, best_from);
    Fill(j, middle + 1, high, best_from, from_high);
  }

  const std::vector<Interval> intervals_;
  const int buckets_;
  std::vector<int64_t> previous_, current_;  // State of j - 1 and of j buckets
  std::vector<std::vector<int>> from_;       // [buckets][intervals]
};

}  // namespace

absl::StatusOr<Bucketing> ChooseBuckets(const std::vector<int64_t>& lengths,
                                        const BucketingOptions& options) {
  if (absl::Status status = Check(lengths); !status.ok()) return status;
  if (options.buckets < 1 || options.granularity < 1) {
    return absl::InvalidArgumentError(absl::StrCat(options.buckets, " buckets at multiples of ",
                                                   options.granularity,
                                                   ": both have to be 1 or more"));
  }
  if (options.granularity > kTokensMax / static_cast<int64_t>(lengths.size()) / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("multiples of ", options.granularity, ": the sum would overflow"));
  }
  std::vector<int64_t> padded = lengths;
  for (int64_t& length : padded) {
    const int64_t multiple =
        (length + options.granularity - 1) / options.granularity * options.granularity;
    length = std::min(multiple, std::max(options.longest, length));
  }
  std::sort(padded.begin(), padded.end());
  std::vector<Interval> intervals;
  for (size_t i = 0; i < padded.size(); ++i) {
    if (intervals.empty() || intervals.back().boundary != padded[i]) {
      intervals.push_back({padded[i], 0});
    }
    intervals.back().sequences = static_cast<int64_t>(i) + 1;
  }
  const int buckets =
      static_cast<int>(std::min<size_t>(static_cast<size_t>(options.buckets), intervals.size()));
  return FillBuckets(lengths, BestBoundaries(std::move(intervals), buckets).Choose());
}

absl::StatusOr<Bucketing> FillBuckets(const std::vector<int64_t>& lengths,
                                      const std::vector<int64_t>& boundaries) {
  if (absl::Status status = Check(lengths); !status.ok()) return status;
  if (boundaries.empty() || boundaries.front() < 1 ||
      std::adjacent_find(boundaries.begin(), boundaries.end(), std::greater_equal<>()) !=
          boundaries.end()) {
    return absl::InvalidArgumentError("boundaries of buckets have to be positive and to rise");
  }
  if (boundaries.back() > kTokensMax / static_cast<int64_t>(lengths.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat("a boundary of ", boundaries.back(), ": the sum would overflow"));
  }
  Bucketing bucketing;
  bucketing.lengths = boundaries;
  bucketing.sequences.assign(boundaries.size(), 0);
  for (int64_t length : lengths) {
    const auto bucket = std::lower_bound(boundaries.begin(), boundaries.end(), length);
    if (bucket == boundaries.end()) {
      return absl::InvalidArgumentError(absl::StrCat("a sequence of ", length,
                                                     " tokens is longer than the last boundary, ",
                                                     boundaries.back()));
    }
    ++bucketing.sequences[bucket - boundaries.begin()];
    bucketing.tokens += length;
    bucketing.padded_tokens += *bucket;
  }
  return bucketing;
}

std::string Bucketing::ToText() const {
  std::string text;
  for (size_t j = 0; j < lengths.size(); ++j) {
    absl::StrAppend(&text, j > 0 ? ", " : "", lengths[j], ": ", sequences[j]);
  }
  return absl::StrCat(text, "; ", tokens, " tokens padded to ", padded_tokens);
}

}  // namespace lorad::planner
