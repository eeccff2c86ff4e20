#include "planner/window/pack_merge.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace lorad::planner {
namespace {

class Merge {
 public:
  Merge(const std::vector<std::vector<Sample>>& batches, const std::vector<PackResult>& packed,
        int stages, const PackOptions& options, const PackLimits& limits)
      : batches_(batches), packed_(packed), stages_(stages), options_(options), limits_(limits) {}

  absl::StatusOr<MergedPacking> Run() {
    for (size_t b = 0; b < batches_.size(); ++b) {
      result_.bins_before += static_cast<int64_t>(packed_[b].packing.size());
      absl::StatusOr<Packing> packing = PackRest(b);
      if (!packing.ok()) return packing.status();
      for (const std::vector<int>& bin : *packing) Append(static_cast<int>(b), bin);
      moved_.clear();
      if (b + 1 < batches_.size() && !packing->empty()) FillLast(static_cast<int>(b) + 1);
    }
    return std::move(result_);
  }

 private:
  // Batch b without what has moved out of it.
  absl::StatusOr<Packing> PackRest(size_t b) const {
    Packing before = packed_[b].packing;
    if (moved_.empty()) return before;
    for (std::vector<int>& bin : before) {
      std::erase_if(bin, [&](int sample) { return moved_.contains(sample); });
    }
    std::erase_if(before, [](const auto& bin) { return bin.empty(); });
    std::vector<Sample> rest;
    std::vector<int> names;
    for (size_t i = 0; i < batches_[b].size(); ++i) {
      if (moved_.contains(static_cast<int>(i))) continue;
      rest.push_back(batches_[b][i]);
      names.push_back(static_cast<int>(i));
    }
    PackLimits limits = limits_;
    limits.empty_last_bin = true;
    absl::StatusOr<PackResult> packed = PackBatch(rest, options_, limits);
    if (!packed.ok()) return packed.status();
    for (std::vector<int>& bin : packed->packing) {
      for (int& sample : bin) sample = names[static_cast<size_t>(sample)];
    }
    const auto worth = [&](const Packing& packing) {
      return std::make_pair(packing.size(), packing.empty() ? 0 : Padded(b, packing.back()));
    };
    return worth(packed->packing) < worth(before) ? packed->packing : before;
  }

  int64_t Padded(size_t b, const std::vector<int>& bin) const {
    return PaddedTokens(batches_[b], bin, options_);
  }

  int64_t RoundUp(int64_t tokens) const {
    return (tokens + options_.padding - 1) / options_.padding * options_.padding;
  }

  void Append(int batch, const std::vector<int>& samples) {
    std::vector<BatchSample>& bin = result_.bins.emplace_back();
    for (int sample : samples) Add(batch, sample, &bin);
  }

  void Add(int batch, int sample, std::vector<BatchSample>* bin) {
    bin->push_back({batch, sample});
    const auto place = static_cast<int64_t>(result_.bins.size()) - 1;
    last_place_[{batches_[batch][sample].job, batch}] = place;
  }

  // Place of the last microbatch with samples of the job's batches before `batch`.
  bool May(const std::string& job, int batch, int64_t place) const {
    const auto after = last_place_.lower_bound({job, batch});
    if (after == last_place_.begin()) return true;
    const auto& [key, last] = *std::prev(after);
    return key.first != job || last <= place - stages_;
  }

  // Moves samples of `batch` into the newest bin.
  void FillLast(int batch) {
    std::vector<BatchSample>& bin = result_.bins.back();
    const auto place = static_cast<int64_t>(result_.bins.size()) - 1;
    std::map<std::string, int64_t> inside;  // tokens of each job
    int64_t padded = 0;
    const auto padded_with = [&](const std::string& job, int64_t length) {
      const auto found = inside.find(job);
      const int64_t before = found == inside.end() ? 0 : found->second;
      return padded - RoundUp(before) + RoundUp(before + length);
    };
    const auto put = [&](const Sample& sample) {
      padded = padded_with(sample.job, Tokens(sample));
      inside[sample.job] += Tokens(sample);
    };
    for (const BatchSample& of : bin) put(batches_[of.batch][of.sample]);
    const std::vector<Sample>& samples = batches_[batch];
    std::vector<int> order(samples.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int a, int b) { return Tokens(samples[a]) > Tokens(samples[b]); });
    for (int sample : order) {
      const std::string& job = samples[sample].job;
      if (padded_with(job, Tokens(samples[sample])) > options_.capacity ||
          !May(job, batch, place)) {
        continue;
      }
      put(samples[sample]);
      Add(batch, sample, &bin);
      moved_.insert(sample);
      ++result_.moved;
    }
  }

  const std::vector<std::vector<Sample>>& batches_;
  const std::vector<PackResult>& packed_;
  const int stages_;
  const PackOptions& options_;
  const PackLimits& limits_;
  MergedPacking result_;
  std::set<int> moved_;  // out of the batch to be appended next
  std::map<std::pair<std::string, int>, int64_t> last_place_;  // (job, batch) -> place
};

}  // namespace

absl::StatusOr<MergedPacking> MergeBatches(const std::vector<std::vector<Sample>>& batches,
                                           const std::vector<PackResult>& packed, int stages,
                                           const PackOptions& options, const PackLimits& limits) {
  if (batches.size() != packed.size() || stages < 1) {
    return absl::InvalidArgumentError(absl::StrCat("merging ", batches.size(), " batches with ",
                                                   packed.size(), " packings on ", stages,
                                                   " stages"));
  }
  return Merge(batches, packed, stages, options, limits).Run();
}

std::string ToText(const MergedPacking& packing) {
  const auto bin = [](std::string* out, const std::vector<BatchSample>& samples) {
    const auto name = [](std::string* to, const BatchSample& of) {
      absl::StrAppend(to, of.batch, "#", of.sample);
    };
    absl::StrAppend(out, "[", absl::StrJoin(samples, " ", name), "]");
  };
  return absl::StrCat(packing.bins.size(), " bins (", packing.bins_before, " without merging, ",
                      packing.moved, " samples moved): ", absl::StrJoin(packing.bins, " ", bin));
}

}  // namespace lorad::planner
