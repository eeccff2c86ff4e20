#include "planner/pack.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner {
namespace {

// Sums of thousands of these fit an int64_t.
constexpr int64_t kCapacityMax = int64_t{1} << 40;

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t LengthOf(const Sample& sample) {
  return std::accumulate(sample.lengths.begin(), sample.lengths.end(), int64_t{0});
}

absl::Status Check(const std::vector<Sample>& samples, const PackOptions& options) {
  const auto [capacity, padding] = options;
  if (capacity <= 0 || padding <= 0 || capacity > kCapacityMax || padding > kCapacityMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("packing needs a capacity and a padding of 1 to ", kCapacityMax, ", got ",
                     capacity, " and ", padding));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    int64_t tokens = 0;
    for (int64_t length : samples[i].lengths) {
      if (length <= 0) {
        return absl::InvalidArgumentError(absl::StrCat("sample ", i, " of job ", samples[i].job,
                                                       " has a sequence of ", length, " tokens"));
      }
      if (tokens <= capacity) tokens = length > capacity ? length : tokens + length;
    }
    const int64_t padded = tokens > capacity ? tokens : RoundUp(tokens, padding);
    if (padded < 1 || padded > capacity) {
      return absl::InvalidArgumentError(
          absl::StrCat("sample ", i, " of job ", samples[i].job, " has ", padded,
                       " tokens; a microbatch holds 1 to ", capacity));
    }
  }
  return absl::OkStatus();
}

// Microbatches being filled; with P = 1 whose the tokens are is moot.
class Bins {
 public:
  Bins(const PackOptions& options, size_t jobs)
      : options_(options), jobs_(options.padding == 1 ? 0 : jobs) {}

  // Into the first bin that still has room.
  void Add(int sample, size_t job, int64_t length) {
    size_t bin = 0;
    while (bin < packing_.size() && PaddedWith(bin, job, length) > options_.capacity) ++bin;
    if (bin == packing_.size()) {
      packing_.emplace_back();
      padded_.push_back(0);
      tokens_.resize(tokens_.size() + jobs_, 0);
    }
    padded_[bin] = PaddedWith(bin, job, length);
    if (jobs_ > 0) tokens_[bin * jobs_ + job] += length;
    packing_[bin].push_back(sample);
  }

  Packing Take() {
    for (std::vector<int>& bin : packing_) std::sort(bin.begin(), bin.end());
    return std::move(packing_);
  }

 private:
  int64_t PaddedWith(size_t bin, size_t job, int64_t length) const {
    if (jobs_ == 0) return padded_[bin] + length;
    const int64_t before = tokens_[bin * jobs_ + job];
    return padded_[bin] - RoundUp(before, options_.padding) +
           RoundUp(before + length, options_.padding);
  }

  const PackOptions& options_;
  const size_t jobs_;
  Packing packing_;
  std::vector<int64_t> padded_;
  std::vector<int64_t> tokens_;  // (bin, job)
};

// The place of each sample's job among all jobs' names in order.
std::vector<size_t> JobOrder(const std::vector<Sample>& samples, size_t* jobs) {
  std::map<std::string_view, size_t> places;
  for (const Sample& sample : samples) places.emplace(sample.job, 0);
  for (auto& [name, place] : places) place = (*jobs)++;
  std::vector<size_t> order;
  for (const Sample& sample : samples) order.push_back(places.at(sample.job));
  return order;
}

}  // namespace

absl::StatusOr<Packing> PackFirstFitDecreasing(const std::vector<Sample>& samples,
                                               const PackOptions& options) {
  if (absl::Status status = Check(samples, options); !status.ok()) return status;
  std::vector<int64_t> lengths(samples.size());
  std::transform(samples.begin(), samples.end(), lengths.begin(), LengthOf);
  size_t job_count = 0;
  const std::vector<size_t> jobs = JobOrder(samples, &job_count);
  std::vector<int> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (lengths[a] != lengths[b]) return lengths[a] > lengths[b];
    return jobs[a] != jobs[b] ? jobs[a] < jobs[b] : a < b;
  });
  Bins bins(options, job_count);
  for (int i : order) bins.Add(i, jobs[i], lengths[i]);
  return bins.Take();
}

// For each threshold t <= C/2: samples above C - t need a bin each and can share it with none of
// length >= t; those above C/2 need one each too, and the rest from t on fill what those leave.
int64_t LowerBoundL2(const std::vector<Sample>& samples, const PackOptions& options) {
  const int64_t capacity = options.capacity / options.padding * options.padding;
  if (samples.empty() || capacity <= 0) return 0;
  std::vector<int64_t> lengths(samples.size());
  std::transform(samples.begin(), samples.end(), lengths.begin(), LengthOf);
  std::sort(lengths.begin(), lengths.end());
  std::vector<int64_t> sums(lengths.size() + 1, 0);
  std::partial_sum(lengths.begin(), lengths.end(), sums.begin() + 1);

  const auto first_above = [&](int64_t length) {
    return std::upper_bound(lengths.begin(), lengths.end(), length) - lengths.begin();
  };
  const int64_t count = static_cast<int64_t>(lengths.size());
  const int64_t above_half = first_above(capacity / 2);
  const auto bound_at = [&](int64_t threshold) {
    const int64_t above_rest = first_above(capacity - threshold);  // large: (C - t, C]
    const int64_t from_threshold = first_above(threshold - 1);     // small: [t, C/2]
    const int64_t middle = above_rest - above_half;
    const int64_t left = middle * capacity - (sums[above_rest] - sums[above_half]);
    const int64_t over = std::max<int64_t>(0, sums[above_half] - sums[from_threshold] - left);
    return (count - above_half) + (over + capacity - 1) / capacity;
  };
  int64_t bound = bound_at(0);
  for (int64_t i = 0; i < above_half; ++i) {
    if (i == 0 || lengths[i] != lengths[i - 1]) bound = std::max(bound, bound_at(lengths[i]));
  }
  return std::max(bound, (PaddedTokens(samples, options) + capacity - 1) / capacity);
}

int64_t PaddedTokens(const std::vector<Sample>& samples, const PackOptions& options) {
  std::vector<int> all(samples.size());
  std::iota(all.begin(), all.end(), 0);
  return PaddedTokens(samples, all, options);
}

int64_t PaddedTokens(const std::vector<Sample>& samples, const std::vector<int>& bin,
                     const PackOptions& options) {
  std::map<std::string_view, int64_t> tokens;
  for (int i : bin) tokens[samples[i].job] += LengthOf(samples[i]);
  int64_t padded = 0;
  for (const auto& [job, of_job] : tokens) padded += RoundUp(of_job, options.padding);
  return padded;
}

std::string ToText(const Packing& packing) {
  return absl::StrJoin(packing, " ", [](std::string* out, const std::vector<int>& bin) {
    absl::StrAppend(out, "[", absl::StrJoin(bin, " "), "]");
  });
}

}  // namespace lorad::planner
