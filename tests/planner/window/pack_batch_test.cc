#include "planner/window/pack_batch.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <ctime>
#include <fstream>
#include <iostream>
#include <map>
#include <numeric>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "tests/planner/fixtures.h"
#include "tests/planner/window/pack_instances.h"

namespace lorad::planner {
namespace {

PackLimits With(PackSolver solver, bool empty_last_bin = false) {
  PackLimits limits;
  limits.solver = solver;
  limits.nodes = solver == PackSolver::kHighs ? 1000 : 1'000'000;
  limits.empty_last_bin = empty_last_bin;
  return limits;
}

// Every sample in one bin, no bin too full, no bin empty.
void CheckPacking(const std::vector<Sample>& samples, const PackOptions& options,
                  const Packing& packing) {
  std::vector<int> seen;
  for (const std::vector<int>& bin : packing) {
    REQUIRE_FALSE(bin.empty());
    REQUIRE(PaddedTokens(samples, bin, options) <= options.capacity);
    seen.insert(seen.end(), bin.begin(), bin.end());
  }
  std::sort(seen.begin(), seen.end());
  std::vector<int> all(samples.size());
  std::iota(all.begin(), all.end(), 0);
  REQUIRE(seen == all);
}

TEST_CASE("Paths") {
  struct Case {
    std::vector<int64_t> lengths;
    int64_t capacity;
    std::string text;
  };
  const Case cases[] = {
      {{}, 10, "0 bins (bound 0, greedy 0, last 0 tokens), greedy met the bound, 0 nodes: "},
      {{6, 4},
       10,
       "1 bins (bound 1, greedy 1, last 10 tokens), greedy met the bound, 0 nodes: [0 1]"},
      // 4+3+3, 4+3+3 fill two bins; greedy takes 4+4 first.
      {{4, 4, 3, 3, 3, 3},
       10,
       "2 bins (bound 2, greedy 3, last 10 tokens), integer program improved, 9 nodes: [0 2 3] "
       "[1 4 5]"},
      // Any three are too long, and five samples need three bins: the bound does not see it.
      {{5, 5, 5, 4, 4},
       12,
       "3 bins (bound 2, greedy 3, last 4 tokens), greedy proved best, 5 nodes: [0 1] [2 3] [4]"},
  };
  for (const Case& c : cases) {
    const auto result = PackBatch(SamplesOf(c.lengths), {c.capacity, 1});
    REQUIRE(result.ok());
    CHECK(ToText(*result) == c.text);
  }
}

TEST_CASE("Greedy stays where the program is not asked, cancelled, or without nodes") {
  const std::vector<Sample> samples = SamplesOf({4, 4, 3, 3, 3, 3});
  const std::string greedy = ToText(*PackFirstFitDecreasing(samples, {10, 1}));
  for (PackSolver solver : {PackSolver::kBinCompletion, PackSolver::kHighs}) {
    PackLimits limits = With(solver);
    limits.nodes = 0;
    auto result = PackBatch(samples, {10, 1}, limits);
    CHECK(result->path == PackPath::kGreedyAlone);
    CHECK(ToText(result->packing) == greedy);
    limits = With(solver);
    limits.cancelled = [] { return true; };
    result = PackBatch(samples, {10, 1}, limits);
    CHECK(result->path == PackPath::kCancelled);
    CHECK(ToText(result->packing) == greedy);
  }
  PackLimits limits;
  limits.nodes = 3;
  const auto result = PackBatch(samples, {10, 1}, limits);
  CHECK(result->path == PackPath::kNodeLimit);
  CHECK_FALSE(result->proved);
  CHECK(ToText(result->packing) == greedy);
}

TEST_CASE("What cannot be packed is refused") {
  CHECK_FALSE(PackBatch(SamplesOf({11}), {10, 1}).ok());
  CHECK_FALSE(PackBatch(SamplesOf({1}), {-1, 1}).ok());
  CHECK_FALSE(PackBatch(SamplesOf({int64_t{1} << 62, 1}), {10, 1}).ok());
  CHECK_FALSE(PackBatch({{"a", {int64_t{1} << 62, int64_t{1} << 62}}}, {10, 1}).ok());
  CHECK_FALSE(PackBatch(SamplesOf({1}), {int64_t{1} << 62, 1}).ok());
}

// The fewest bins, and with so many the least padded tokens in one of them, by trying every bin for
// every sample.
class BruteForce {
 public:
  BruteForce(const std::vector<Sample>& samples, const PackOptions& options)
      : samples_(samples), options_(options), best_{samples.size() + 1, 0} {
    Try(0);
  }
  std::pair<size_t, int64_t> best() const { return best_; }

 private:
  void Try(size_t sample) {
    if (bins_.size() > best_.first) return;
    if (sample == samples_.size()) {
      int64_t least = options_.capacity;
      for (const auto& bin : bins_) least = std::min(least, Padded(bin));
      best_ = std::min(best_, {bins_.size(), least});
      return;
    }
    for (size_t bin = 0; bin <= bins_.size(); ++bin) {
      const bool opened = bin == bins_.size();
      if (opened) bins_.emplace_back();
      int64_t& tokens = bins_[bin][samples_[sample].job];
      tokens += samples_[sample].lengths[0];
      if (Padded(bins_[bin]) <= options_.capacity) Try(sample + 1);
      bins_[bin][samples_[sample].job] -= samples_[sample].lengths[0];
      if (opened) {
        bins_.pop_back();
        break;
      }
    }
  }
  int64_t Padded(const std::map<std::string, int64_t>& bin) const {
    int64_t padded = 0;
    for (const auto& [job, tokens] : bin) {
      padded += (tokens + options_.padding - 1) / options_.padding * options_.padding;
    }
    return padded;
  }

  const std::vector<Sample>& samples_;
  const PackOptions& options_;
  std::vector<std::map<std::string, int64_t>> bins_;
  std::pair<size_t, int64_t> best_;
};

std::vector<Sample> DrawSmall(std::mt19937& random, int64_t capacity, int64_t padding,
                              size_t count) {
  std::vector<Sample> samples;
  const int64_t longest = capacity / padding * padding;
  const int64_t span = std::max<int64_t>(1, longest / static_cast<int64_t>(1 + random() % 3));
  const std::string jobs[] = {"a", "b", "c"};
  for (size_t i = 0; i < count; ++i) {
    samples.push_back({jobs[random() % 3], {1 + static_cast<int64_t>(random()) % span}});
  }
  return samples;
}

TEST_CASE("On small random instances both stages are as good as brute force, and say so") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 2000; ++i) {
      const int64_t padding = i % 2 == 0 ? 1 : 1 + static_cast<int64_t>(random() % 6);
      const PackOptions options{padding + 4 + static_cast<int64_t>(random() % 40), padding};
      const std::vector<Sample> samples =
          DrawSmall(random, options.capacity, padding, 1 + random() % 7);
      const auto best = BruteForce(samples, options).best();
      REQUIRE(LowerBoundL2(samples, options) <= static_cast<int64_t>(best.first));
      const bool highs = i % 20 == 0;
      const auto result = PackBatch(
          samples, options, With(highs ? PackSolver::kHighs : PackSolver::kBinCompletion, true));
      REQUIRE(result.ok());
      INFO(ToText(*result) << " capacity " << options.capacity << " padding " << padding);
      CheckPacking(samples, options, result->packing);
      REQUIRE(result->proved);
      REQUIRE(std::pair(result->packing.size(), result->last_padded) == best);
      const auto fewest = PackBatch(samples, options);
      REQUIRE(fewest->proved);
      REQUIRE(fewest->packing.size() == best.first);
    }
  }
}

TEST_CASE("Greedy wins ties: the program's packing comes only where it is better") {
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    const std::vector<Sample> samples = DrawSmall(random, 40, 1, 8);
    const auto result = PackBatch(samples, {40, 1});
    const auto greedy = PackFirstFitDecreasing(samples, {40, 1});
    REQUIRE(result->packing.size() <= greedy->size());
    REQUIRE((result->packing == *greedy) == (result->path != PackPath::kProgramImproved));
    REQUIRE((result->packing == *greedy) == (result->packing.size() == greedy->size()));
  }
}

// Of this process, whoever else computes.
double Seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

struct Instance {
  std::string kind;
  int64_t capacity;
  std::vector<int64_t> lengths;
};

std::vector<Instance> ReadInstances() {
  std::ifstream file("tests/planner/window/data/pack_gap.txt");
  REQUIRE(file.good());
  std::vector<Instance> instances;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    Instance& instance = instances.emplace_back();
    words >> instance.kind >> instance.capacity;
    for (int64_t length; words >> length;) instance.lengths.push_back(length);
  }
  return instances;
}

// How data/pack_gap.txt came to be: the first 25 of each kind and size on which greedy misses L2.
// Run with the argument "[draw]".
TEST_CASE("Draw the instances", "[.draw]") {
  std::mt19937_64 random(20261121);
  for (size_t kind = 0; kind < kLengthKinds.size(); ++kind) {
    for (size_t count : {32, 64}) {
      for (int found = 0; found < 25;) {
        const std::vector<int64_t> lengths = DrawLengths(random, kind, count);
        const PackOptions options{kPaperCapacity, 1};
        const auto greedy = PackFirstFitDecreasing(SamplesOf(lengths), options);
        if (static_cast<int64_t>(greedy->size()) == LowerBoundL2(SamplesOf(lengths), options)) {
          continue;
        }
        ++found;
        std::cout << kLengthKinds[kind] << " " << kPaperCapacity;
        for (int64_t length : lengths) std::cout << " " << length;
        std::cout << "\n";
      }
    }
  }
}

TEST_CASE("Of 200 committed batches on which greedy misses L2 the program closes 80 % and more") {
  const std::vector<Instance> instances = ReadInstances();
  REQUIRE(instances.size() == 200);
  int met = 0, proved = 0;
  for (const Instance& instance : instances) {
    const std::vector<Sample> samples = SamplesOf(instance.lengths);
    const PackOptions options{instance.capacity, 1};
    const auto result = PackBatch(samples, options);
    REQUIRE(result.ok());
    CheckPacking(samples, options, result->packing);
    REQUIRE(result->greedy_bins > result->bound_bins);
    const bool at_bound = static_cast<int64_t>(result->packing.size()) == result->bound_bins;
    met += at_bound ? 1 : 0;
    proved += !at_bound && result->proved ? 1 : 0;
  }
  std::cout << "gap closed to L2 in " << met << " of 200, proved impossible in " << proved
            << ", open in " << 200 - met - proved << "\n";
  CHECK(met >= 160);
}

TEST_CASE("The program in assignment variables on HiGHS finds no more, and takes longer") {
  const std::vector<Instance> instances = ReadInstances();
  int asked = 0, found = 0;
  double seconds = 0;
  for (const Instance& instance : instances) {
    if (instance.lengths.size() != 32 || instance.kind == "wikisum" || ++asked % 15 != 0) continue;
    const std::vector<Sample> samples = SamplesOf(instance.lengths);
    const PackOptions options{instance.capacity, 1};
    PackLimits limits = With(PackSolver::kHighs);
    limits.nodes = 1;  // the root, its heuristics and cuts
    const double start = Seconds();
    const auto by_highs = PackBatch(samples, options, limits);
    seconds += Seconds() - start;
    const auto by_search = PackBatch(samples, options);
    REQUIRE(by_highs.ok());
    CheckPacking(samples, options, by_highs->packing);
    found += by_highs->path == PackPath::kProgramImproved ? 1 : 0;
    REQUIRE(by_search->proved);
    CHECK(by_highs->packing.size() >= by_search->packing.size());
  }
  std::cout << "HiGHS at its root node: better than greedy in " << found << " of " << asked / 15
            << ", " << 1e6 * seconds / (32 * asked / 15) << " us a sample\n";
}

TEST_CASE("Programs too large for HiGHS are left to greedy") {
  std::vector<int64_t> lengths;
  for (int64_t i = 0; i < 300; ++i) lengths.push_back(301 + i * 37 % 100);  // two a bin; L2 sees it
  lengths.insert(lengths.end(), 100, 350);
  const auto result = PackBatch(SamplesOf(lengths), {1000, 1}, With(PackSolver::kHighs));
  REQUIRE(result.ok());
  CHECK(result->greedy_bins > result->bound_bins);
  CHECK(result->path == PackPath::kNodeLimit);
  CHECK_FALSE(result->proved);
}

struct Totals {
  int64_t batches = 0, needed = 0, bins = 0, greedy_bins = 0, bound = 0, samples = 0, open = 0;
  double seconds = 0, greedy_seconds = 0;
};

Totals PackMany(size_t kind, size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  Totals totals;
  const PackOptions options{kPaperCapacity, 1};
  for (int i = 0; i < 250; ++i) {
    const std::vector<Sample> samples = SamplesOf(DrawLengths(random, kind, count));
    const double start = Seconds();
    const auto greedy = PackFirstFitDecreasing(samples, options);
    const double middle = Seconds();
    const auto result = PackBatch(samples, options);
    totals.greedy_seconds += middle - start;
    totals.seconds += Seconds() - middle;
    totals.batches += 1;
    totals.samples += static_cast<int64_t>(count);
    totals.needed += result->path == PackPath::kGreedyMetBound ? 0 : 1;
    totals.open += result->path == PackPath::kNodeLimit ? 1 : 0;
    totals.bins += static_cast<int64_t>(result->packing.size());
    totals.greedy_bins += result->greedy_bins;
    totals.bound += result->bound_bins;
  }
  return totals;
}

TEST_CASE("Batches of 32 and 64: at most 1.01 L2, 1 ms a sample with the program, 10 us without") {
  for (size_t kind = 0; kind < kLengthKinds.size(); ++kind) {
    for (size_t count : {32, 64}) {
      const Totals totals = PackMany(kind, count, 7 + count);
      const double ratio = static_cast<double>(totals.bins) / static_cast<double>(totals.bound);
      const double greedy =
          static_cast<double>(totals.greedy_bins) / static_cast<double>(totals.bound);
      const double us = 1e6 / static_cast<double>(totals.samples);
      std::cout << kLengthKinds[kind] << " " << count << ": " << ratio << " of L2 (greedy "
                << greedy << "), program needed in " << totals.needed << " of " << totals.batches
                << " (" << totals.open << " left open), " << totals.seconds * us
                << " us a sample, greedy " << totals.greedy_seconds * us << " us\n";
      CHECK(ratio <= 1.01);
      CHECK(totals.seconds * us <= 1000);
      CHECK(totals.greedy_seconds * us <= 10);
    }
  }
}

TEST_CASE("With a padding multiple and four jobs too, and greedy's speed on a thousand samples") {
  std::mt19937_64 random(5);
  const PackOptions options{kPaperCapacity, 64};
  double best = 1;
  for (int attempt = 0; attempt < 5; ++attempt) {
    std::vector<Sample> samples = SamplesOf(DrawLengths(random, 3, 1000));
    for (size_t i = 0; i < samples.size(); ++i) samples[i].job = absl::StrCat("job-", i % 4);
    const double start = Seconds();
    const auto packing = PackFirstFitDecreasing(samples, options);
    best = std::min(best, (Seconds() - start) / 1000);
    CheckPacking(samples, options, *packing);
  }
  std::cout << "greedy, 1000 samples of 4 jobs, P = 64: " << best * 1e6 << " us a sample\n";
  CHECK(best <= 10e-6);
  int improved = 0, missed = 0;
  for (int i = 0; i < 100; ++i) {
    std::vector<Sample> samples = SamplesOf(DrawLengths(random, 3, 32));
    for (size_t k = 0; k < samples.size(); ++k) samples[k].job = absl::StrCat("job-", k % 4);
    PackLimits limits;
    limits.empty_last_bin = true;
    limits.nodes = 100'000;
    const auto result = PackBatch(samples, options, limits);
    REQUIRE(result.ok());
    CheckPacking(samples, options, result->packing);
    missed += result->greedy_bins > result->bound_bins ? 1 : 0;
    improved += result->path == PackPath::kProgramImproved ? 1 : 0;
  }
  std::cout << "P = 64, 4 jobs: greedy misses L2 in " << missed << " of 100, fewer bins or an "
            << "emptier last one in " << improved << "\n";
}

TEST_CASE("Cancelling ends within some 16,000 nodes") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100; ++i) {
    const std::vector<Sample> samples = SamplesOf(DrawLengths(random, 2, 128));
    PackLimits limits;
    int asked = 0;
    limits.cancelled = [&] { return ++asked > 2; };
    const auto result = PackBatch(samples, {kPaperCapacity, 1}, limits);
    REQUIRE(result->nodes < 60'000);
    if (asked <= 2) continue;
    REQUIRE(result->path == PackPath::kCancelled);
    REQUIRE(result->packing == *PackFirstFitDecreasing(samples, {kPaperCapacity, 1}));
  }
}

}  // namespace
}  // namespace lorad::planner
