#include "planner/window/pack.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <map>
#include <numeric>
#include <set>
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

// The room of each bin, as a tree of maxima. All bins there may ever be are there from the start:
// those without a sample stand behind the others, so the first one with room opens when it has to.
class Rooms {
 public:
  Rooms(size_t bins, int64_t tokens)
      : leaves_(std::bit_ceil(std::max<size_t>(1, bins))), most_(2 * leaves_, tokens) {}

  // The first bin from `from` on with so much. REQUIRES: there is one.
  size_t First(size_t from, int64_t tokens) const {
    size_t node = leaves_ + from;
    while (most_[node] < tokens) {
      while (node % 2 == 1) node /= 2;  // a right child: what is next lies right of the parent
      ++node;
      assert(node > 1);
    }
    while (node < leaves_) node = most_[2 * node] >= tokens ? 2 * node : 2 * node + 1;
    return node - leaves_;
  }

  void Set(size_t bin, int64_t tokens) {
    most_[leaves_ + bin] = tokens;
    for (size_t node = (leaves_ + bin) / 2; node > 0; node /= 2) {
      most_[node] = std::max(most_[2 * node], most_[2 * node + 1]);
    }
  }

 private:
  const size_t leaves_;
  std::vector<int64_t> most_;  // of the leaves below each node; 1 is the root
};

// Microbatches being filled; with P = 1 whose the tokens are is moot.
class Bins {
 public:
  Bins(const PackOptions& options, size_t samples)
      : padding_(options.padding),
        capacity_(options.capacity / options.padding * options.padding),
        rooms_(samples, capacity_) {}

  // Into the first bin that still has room.
  void Add(int sample, size_t job, int64_t length) {
    size_t at = rooms_.First(0, length);
    while (at < bins_.size() && PaddedWith(bins_[at], job, length) > capacity_) {
      at = rooms_.First(at + 1, length);
    }
    if (at == bins_.size()) bins_.emplace_back();
    Bin& bin = bins_[at];
    bin.padded = PaddedWith(bin, job, length);
    bin.samples.push_back(sample);
    if (padding_ > 1) Count(job, length, &bin);
    rooms_.Set(at, capacity_ - bin.padded + (bin.rests.empty() ? 0 : *bin.rests.rbegin()));
  }

  Packing Take() {
    Packing packing;
    packing.reserve(bins_.size());
    for (Bin& bin : bins_) {
      std::sort(bin.samples.begin(), bin.samples.end());
      packing.push_back(std::move(bin.samples));
    }
    return packing;
  }

 private:
  struct Bin {
    std::vector<int> samples;
    int64_t padded = 0;
    // With P > 1, of each job: its tokens, and what rounding up leaves for more of them.
    std::map<size_t, int64_t> tokens = {};
    std::multiset<int64_t> rests = {};
  };

  int64_t Rest(int64_t tokens) const { return RoundUp(tokens, padding_) - tokens; }

  void Count(size_t job, int64_t length, Bin* bin) const {
    int64_t& tokens = bin->tokens[job];
    if (tokens > 0) bin->rests.erase(bin->rests.find(Rest(tokens)));
    tokens += length;
    bin->rests.insert(Rest(tokens));
  }

  int64_t PaddedWith(const Bin& bin, size_t job, int64_t length) const {
    if (padding_ == 1) return bin.padded + length;
    const auto found = bin.tokens.find(job);
    const int64_t before = found == bin.tokens.end() ? 0 : found->second;
    return bin.padded - RoundUp(before, padding_) + RoundUp(before + length, padding_);
  }

  const int64_t padding_;
  const int64_t capacity_;
  Rooms rooms_;
  std::vector<Bin> bins_;
};

// The place of each sample's job among all jobs' names in order.
std::vector<size_t> JobOrder(const std::vector<Sample>& samples) {
  std::map<std::string_view, size_t> places;
  for (const Sample& sample : samples) places.emplace(sample.job, 0);
  size_t next = 0;
  for (auto& [name, place] : places) place = next++;
  std::vector<size_t> order;
  for (const Sample& sample : samples) order.push_back(places.at(sample.job));
  return order;
}

}  // namespace

int64_t Tokens(const Sample& sample) {
  return std::accumulate(sample.lengths.begin(), sample.lengths.end(), int64_t{0});
}

absl::StatusOr<Packing> PackFirstFitDecreasing(const std::vector<Sample>& samples,
                                               const PackOptions& options) {
  if (absl::Status status = Check(samples, options); !status.ok()) return status;
  std::vector<int64_t> lengths(samples.size());
  std::transform(samples.begin(), samples.end(), lengths.begin(),
                 [](const Sample& sample) { return Tokens(sample); });
  const std::vector<size_t> jobs = JobOrder(samples);
  std::vector<int> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (lengths[a] != lengths[b]) return lengths[a] > lengths[b];
    return jobs[a] != jobs[b] ? jobs[a] < jobs[b] : a < b;
  });
  Bins bins(options, samples.size());
  for (int i : order) bins.Add(i, jobs[i], lengths[i]);
  return bins.Take();
}

// For each threshold t <= C/2: samples above C - t need a bin each and can share it with none of
// length >= t; those above C/2 need one each too, and the rest from t on fill what those leave.
int64_t LowerBoundL2(const std::vector<Sample>& samples, const PackOptions& options) {
  const int64_t capacity = options.capacity / options.padding * options.padding;
  if (samples.empty() || capacity <= 0) return 0;
  std::vector<int64_t> lengths(samples.size());
  std::transform(samples.begin(), samples.end(), lengths.begin(),
                 [](const Sample& sample) { return Tokens(sample); });
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
  for (int i : bin) tokens[samples[i].job] += Tokens(samples[i]);
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
