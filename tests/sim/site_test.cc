// Whole histories of a site among calamities. A failing seed is printed, with a smaller history
// that fails as well and the command that plays it again.
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "tests/sim/history.h"
#include "third_party/catch_main.h"

namespace lorad::sim {
namespace {

struct Flags {
  uint64_t seed = 1;
  uint64_t seeds = 1334;  // half of 2,667 (BUILD.bazel), of which 2,000 are of groups of one worker
  std::string keep;
  int workers = 0;
  int shrink = 400;
} flags;

const bool added[] = {
    testing::AddFlag(&flags.seed, "--seed", "seed", "the first seed"),
    testing::AddFlag(&flags.seeds, "--seeds", "count", "how many"),
    testing::AddFlag(&flags.keep, "--keep", "numbers", "of what happens, these alone: 3,7,12"),
    testing::AddFlag(&flags.workers, "--workers", "count", "the first of them alone"),
    testing::AddFlag(&flags.shrink, "--shrink", "tries", "to make a failing history smaller"),
};

History HistoryOf(uint64_t seed) {
  const History history = DrawHistory(seed);
  std::vector<int> numbers = NumbersOf(history);
  if (!flags.keep.empty()) {
    numbers.clear();
    for (const auto text : absl::StrSplit(flags.keep, ',')) {
      REQUIRE(absl::SimpleAtoi(text, &numbers.emplace_back()));
    }
  }
  return Part(history, numbers, flags.workers);
}

void Explain(const History& history) {
  Tally tally;
  const auto fails = [&](const History& part) {
    return !GoesWell([&] { return Play(part); }, true, &tally);
  };
  const History smallest = ShrinkHistory(history, fails, flags.shrink);
  std::cout << "seed " << history.site.seed << " failed; so does\n" << ToText(smallest) << "\n";
}

TEST_CASE("histories that failed once end as they should") {
  for (const uint64_t seed : kFailedOnce) {
    INFO("seed " << seed);
    Tally tally;
    CHECK(GoesWell([&] { return Play(DrawHistory(seed)); }, false, &tally));
  }
}

// Among so many histories some group is found again.
constexpr uint64_t kSeedsThatAdopt = 100;

TEST_CASE("histories of a site end as they should") {
  const auto start = std::chrono::steady_clock::now();
  double simulated_s = 0;
  int64_t deaths = 0, closings = 0, adoptions = 0;
  for (uint64_t seed = flags.seed; seed < flags.seed + flags.seeds; ++seed) {
    const History history = HistoryOf(seed);
    Tally tally;
    INFO("seed " << seed);
    if (!GoesWell([&] { return Play(history); }, false, &tally)) {
      Explain(history);
      FAIL("it does not end as it should");
    }
    deaths += tally.deaths;
    closings += tally.closings;
    adoptions += tally.adoptions;
    simulated_s += static_cast<double>(tally.simulated_us) / 1e6;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::cout << "site_test: " << flags.seeds << " histories, "
            << static_cast<double>(flags.seeds) * 60 / took.count() << " a minute, "
            << simulated_s / 60 / took.count() << " simulated hours a minute; the coordinator died "
            << deaths << " times and closed " << closings << " workers; it found " << adoptions
            << " groups again\n";
  if (flags.seeds >= kSeedsThatAdopt) REQUIRE(adoptions > 0);
}

}  // namespace
}  // namespace lorad::sim
