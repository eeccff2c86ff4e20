// That what fails is noticed, made smaller, and the same whenever it is played again.
#include "tests/sim/shrink.h"

#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <numeric>
#include <string_view>

#include "tests/sim/history.h"

namespace lorad::sim {
namespace {

bool GoesWell(const std::function<Tally()>& trial, int seconds = 300) {
  Tally tally;
  return GoesWell(trial, true, &tally, seconds);
}

TEST_CASE("whatever fails in a trial is noticed") {
  CHECK(GoesWell([] { return Tally(); }));
  CHECK_FALSE(GoesWell([] {
    REQUIRE(1 + 1 == 3);
    return Tally();
  }));
  CHECK_FALSE(GoesWell([] {
    std::abort();
    return Tally();
  }));
  CHECK_FALSE(GoesWell(
      [] {
        for (;;) pause();
        return Tally();
      },
      1));
}

TEST_CASE("a trial that goes well tells of itself") {
  Tally tally;
  REQUIRE(GoesWell([] { return Tally{.simulated_us = 7, .fingerprint = 8}; }, true, &tally));
  CHECK(tally.simulated_us == 7);
  CHECK(tally.fingerprint == 8);
}

TEST_CASE("a list shrinks to what its failure needs") {
  std::vector<int> all(50);
  std::iota(all.begin(), all.end(), 0);
  const auto has = [](const std::vector<int>& list, int number) {
    return std::ranges::find(list, number) != list.end();
  };
  int tries = 0;
  const auto fails = [&](const std::vector<int>& list) {
    tries++;
    return has(list, 3) && (has(list, 17) || has(list, 40));
  };
  CHECK(Shrink(all, fails, 1000) == std::vector{3, 17});
  tries = 0;
  Shrink(all, fails, 5);
  CHECK(tries == 5);
  CHECK(Shrink(
            all, [](const auto&) { return true; }, 1000)
            .empty());
}

// A site that cannot bear its coordinator to die twice.
Tally PlayDelicately(const History& history) {
  const Tally tally = Play(history);
  REQUIRE(tally.deaths < 2);
  return tally;
}

// Without deaths at an effect of the disk, or because it fails: what brings the disk there would be
// part of the failure.
History Immediate(uint64_t seed) {
  History history = DrawHistory(seed);
  std::erase_if(history.happenings, [](const Happening& happening) {
    const std::string_view name = NameOfKind(happening.kind);
    return name.find("at an effect") != name.npos || name == "the disk fails now and then";
  });
  return history;
}

TEST_CASE("a planted failure shrinks to what it needs, and can be played again") {
  const auto fails = [](const History& part) {
    return !GoesWell([&] { return PlayDelicately(part); });
  };
  uint64_t seed = 1;
  while (Immediate(seed).happenings.size() < 20 || !fails(Immediate(seed))) ++seed;
  const History history = Immediate(seed);
  const History smallest = ShrinkHistory(history, fails, 1000);
  INFO(ToText(history) << "shrunk to\n" << ToText(smallest));
  CHECK(smallest.happenings.size() >= 1);
  CHECK(smallest.happenings.size() <= 4);  // two deaths, and who gives the loop work
  CHECK(smallest.site.machines.size() == 1);
  for (const int number : NumbersOf(smallest)) {
    std::vector<int> fewer = NumbersOf(smallest);
    std::erase(fewer, number);
    CHECK_FALSE(fails(Part(history, fewer, 1)));
  }
  CHECK(fails(Part(Immediate(seed), NumbersOf(smallest), 1)));
}

TEST_CASE("a history that is played again is the same") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    Tally first, second;
    REQUIRE(GoesWell([&] { return Play(DrawHistory(seed)); }, true, &first));
    REQUIRE(GoesWell([&] { return Play(DrawHistory(seed)); }, true, &second));
    INFO("seed " << seed);
    CHECK(first.fingerprint == second.fingerprint);
    CHECK(first.fingerprint != 0);
  }
}

}  // namespace
}  // namespace lorad::sim
