#include "planner/pack.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner {
namespace {

int64_t RoundUp(int64_t value, int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

int64_t LengthOf(const Sample& sample) {
  return std::accumulate(sample.lengths.begin(), sample.lengths.end(), int64_t{0});
}

absl::Status Check(const std::vector<Sample>& samples, const PackOptions& options) {
  if (options.capacity <= 0 || options.padding <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("packing needs a positive capacity and padding",
                                                   ", got ", options.capacity, " and ",
                                                   options.padding));
  }
  for (size_t i = 0; i < samples.size(); ++i) {
    for (int64_t length : samples[i].lengths) {
      if (length > 0) continue;
      return absl::InvalidArgumentError(absl::StrCat("sample ", i, " of job ", samples[i].job,
                                                     " has a sequence of ", length, " tokens"));
    }
    const int64_t padded = RoundUp(LengthOf(samples[i]), options.padding);
    if (samples[i].lengths.empty() || padded > options.capacity) {
      return absl::InvalidArgumentError(
          absl::StrCat("sample ", i, " of job ", samples[i].job, " has ", padded,
                       " tokens; a microbatch holds 1 to ", options.capacity));
    }
  }
  return absl::OkStatus();
}

// A microbatch being filled.
struct Bin {
  std::vector<int> samples;
  std::map<std::string, int64_t> tokens;  // of each job
  int64_t padded = 0;

  int64_t PaddedWith(const std::string& job, int64_t length, int64_t padding) const {
    const auto it = tokens.find(job);
    const int64_t before = it == tokens.end() ? 0 : it->second;
    return padded - RoundUp(before, padding) + RoundUp(before + length, padding);
  }
};

}  // namespace

absl::StatusOr<Packing> PackFirstFitDecreasing(const std::vector<Sample>& samples,
                                               const PackOptions& options) {
  if (absl::Status status = Check(samples, options); !status.ok()) return status;
  std::vector<int64_t> lengths(samples.size());
  std::transform(samples.begin(), samples.end(), lengths.begin(), LengthOf);
  std::vector<int> order(samples.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int a, int b) {
    if (lengths[a] != lengths[b]) return lengths[a] > lengths[b];
    if (samples[a].job != samples[b].job) return samples[a].job < samples[b].job;
    return a < b;
  });

  std::vector<Bin> bins;
  for (int i : order) {
    const std::string& job = samples[i].job;
    auto bin = std::find_if(bins.begin(), bins.end(), [&](const Bin& candidate) {
      return candidate.PaddedWith(job, lengths[i], options.padding) <= options.capacity;
    });
    if (bin == bins.end()) bin = bins.insert(bins.end(), Bin{});
    bin->padded = bin->PaddedWith(job, lengths[i], options.padding);
    bin->tokens[job] += lengths[i];
    bin->samples.push_back(i);
  }

  Packing packing;
  for (Bin& bin : bins) {
    std::sort(bin.samples.begin(), bin.samples.end());
    packing.push_back(std::move(bin.samples));
  }
  return packing;
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
  return bound;
}

int64_t PaddedTokens(const std::vector<Sample>& samples, const std::vector<int>& bin,
                     const PackOptions& options) {
  std::map<std::string, int64_t> tokens;
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
