#include "planner/window/pack_merge.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <map>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "planner/window/order.h"
#include "tests/planner/fixtures.h"
#include "tests/planner/window/pack_instances.h"

namespace lorad::planner {
namespace {

using Batches = std::vector<std::vector<Sample>>;

MergedPacking Merged(const Batches& batches, int stages, const PackOptions& options) {
  PackLimits limits;
  limits.empty_last_bin = true;
  limits.nodes = 20'000;
  std::vector<PackResult> packed;
  for (const std::vector<Sample>& batch : batches) {
    packed.push_back(*PackBatch(batch, options, limits));
  }
  return *MergeBatches(batches, packed, stages, options, limits);
}

TEST_CASE("Merging, one stage") {
  // Batch 0 leaves 6 free in its last bin, where job a's next 6 may not stand (its batch 0 is in
  // that bin), but job b's may.
  const Batches batches = {{{"a", {10}}, {"a", {4}}}, {{"a", {6}}, {"b", {6}}, {"b", {4}}}};
  CHECK(ToText(Merged(batches, 1, {10, 1})) ==
        "3 bins (4 without merging, 1 samples moved): [0#0] [0#1 1#1] [1#0 1#2]");
  CHECK(ToText(Merged({}, 1, {10, 1})) == "0 bins (0 without merging, 0 samples moved): ");
  CHECK(ToText(Merged({{}, {{"a", {3}}}}, 1, {10, 1})) ==
        "1 bins (1 without merging, 0 samples moved): [1#0]");
}

TEST_CASE("A job's next batch waits as many microbatches as there are stages") {
  // Job a's batch 0 stands in bin 0, two before the last.
  const Batches batches = {{{"a", {10}}, {"b", {9}}, {"c", {6}}}, {{"a", {4}}, {"a", {9}}}};
  CHECK(ToText(Merged(batches, 2, {10, 1})) ==
        "4 bins (5 without merging, 1 samples moved): [0#0] [0#1] [0#2 1#0] [1#1]");
  CHECK(ToText(Merged(batches, 3, {10, 1})) ==
        "5 bins (5 without merging, 0 samples moved): [0#0] [0#1] [0#2] [1#1] [1#0]");
}

TEST_CASE("Lists that do not belong together are refused") {
  CHECK_FALSE(MergeBatches({{}}, {}, 1, {10, 1}, {}).ok());
  CHECK_FALSE(MergeBatches({}, {}, 0, {10, 1}, {}).ok());
}

// The merged bins as microbatches of steps 1, 2, ...
OrderInput ToOrder(const Batches& batches, const MergedPacking& packing, int stages) {
  OrderInput input;
  input.stages = stages;
  std::set<std::pair<int, std::string>> ends;
  for (const std::vector<BatchSample>& bin : packing.bins) {
    Microbatch& microbatch = input.microbatches.emplace_back();
    microbatch.number = static_cast<int64_t>(input.microbatches.size()) - 1;
    for (const BatchSample& of : bin) {
      const Sample& sample = batches[of.batch][of.sample];
      microbatch.segments.push_back(
          {sample.job, SegmentMode::kTrain, of.batch + 1, of.sample, 0, sample.lengths[0]});
      ends.emplace(of.batch + 1, sample.job);
    }
  }
  for (const auto& [step, job] : ends) input.ends.push_back({job, step, 0.1, false});
  return input;
}

// Noops that the order needs for the moved samples: none, by the distance they keep.
TEST_CASE("On random batches: every sample once, no bin too full, every moved one far enough") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 300; ++i) {
      const int stages = 1 + static_cast<int>(random() % 4);
      const PackOptions options{20 + static_cast<int64_t>(random() % 20),
                                i % 3 == 0 ? 1 + static_cast<int64_t>(random() % 5) : 1};
      Batches batches(1 + random() % 4);
      for (std::vector<Sample>& batch : batches) {
        batch.resize(4 + random() % 10);
        for (Sample& sample : batch) {
          sample = {absl::StrCat("job-", random() % 6),
                    {1 + static_cast<int64_t>(random() % (i % 2 == 0 ? 15 : 6))}};
        }
      }
      // Every job in every batch, so that steps count up by one.
      for (std::vector<Sample>& batch : batches) {
        for (int job = 0; job < 6; ++job) batch.push_back({absl::StrCat("job-", job), {1}});
      }
      const MergedPacking merged = Merged(batches, stages, options);
      INFO(ToText(merged));
      REQUIRE(static_cast<int64_t>(merged.bins.size()) <= merged.bins_before);
      std::set<std::pair<int, int>> seen;
      std::map<std::pair<std::string, int>, int64_t> last;  // (job, batch) -> place
      for (size_t place = 0; place < merged.bins.size(); ++place) {
        std::vector<Sample> inside;
        int newest = 0, oldest = 1 << 30;
        for (const BatchSample& of : merged.bins[place]) {
          REQUIRE(seen.emplace(of.batch, of.sample).second);
          inside.push_back(batches[of.batch][of.sample]);
          last[{inside.back().job, of.batch}] = static_cast<int64_t>(place);
          newest = std::max(newest, of.batch);
          oldest = std::min(oldest, of.batch);
        }
        REQUIRE(PaddedTokens(inside, options) <= options.capacity);
        if (newest == oldest) continue;
        for (const BatchSample& of : merged.bins[place]) {
          if (of.batch == oldest) continue;
          const auto before = last.find({batches[of.batch][of.sample].job, of.batch - 1});
          REQUIRE(before->second <= static_cast<int64_t>(place) - stages);
        }
      }
      size_t samples = 0;
      for (const std::vector<Sample>& batch : batches) samples += batch.size();
      REQUIRE(seen.size() == samples);
      const OrderInput order = ToOrder(batches, merged, stages);
      const auto lists = OrderOperations(order);
      REQUIRE(lists.ok());
      Window window{order.microbatches, {}, *lists};
      for (const BatchEnd& end : order.ends) window.batches.push_back({end.job, end.step, 1, 1, 1});
      const absl::Status verified = VerifyWindow(window);
      INFO(verified.message());
      REQUIRE(verified.ok());
    }
  }
}

TEST_CASE("What merging saves on batches of 32 like the papers'") {
  for (size_t kind = 0; kind < kLengthKinds.size(); ++kind) {
    std::mt19937_64 random(17);
    int64_t before = 0, after = 0;
    for (int group = 0; group < 10; ++group) {
      Batches batches(10);
      for (size_t b = 0; b < batches.size(); ++b) {
        batches[b] = SamplesOf(DrawLengths(random, kind, 32));
        for (size_t i = 0; i < 32; ++i)
          batches[b][i].job = absl::StrCat("job-", i % 2 + 2 * (b % 2));
      }
      const MergedPacking merged = Merged(batches, 1, {kPaperCapacity, 1});
      before += merged.bins_before;
      after += static_cast<int64_t>(merged.bins.size());
    }
    std::cout << kLengthKinds[kind] << ": " << before << " microbatches before merging, " << after
              << " after\n";
    CHECK(after < before);
  }
}

}  // namespace
}  // namespace lorad::planner
