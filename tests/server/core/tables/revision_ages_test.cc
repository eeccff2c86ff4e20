#include "server/core/jobs/revision_ages.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

TEST_CASE("no revision is old before its time, and all are soon after") {
  constexpr int64_t kKeep = 3'600'000'000;
  constexpr int64_t kEvery = 1'000'000;  // a revision
  RevisionAges ages(kKeep);
  for (int64_t revision = 1; revision <= 3 * 3600; ++revision) {
    const int64_t now_us = revision * kEvery;
    ages.Note(now_us, revision);
    const int64_t old = ages.OldAt(now_us);
    CHECK(now_us - old * kEvery >= (old == 0 ? 0 : kKeep));
    CHECK(now_us - (old + 1) * kEvery <= kKeep + kKeep / 8);
  }
}

TEST_CASE("after a rest nothing is older than it is, and what was there before is") {
  RevisionAges ages(1000);
  ages.Note(0, 7);
  CHECK(ages.OldAt(1000) == 0);
  ages.Note(1000, 7);
  CHECK(ages.OldAt(1001) == 7);
  ages.Note(50'000, 8);
  CHECK(ages.OldAt(50'000) == 7);
  CHECK(ages.OldAt(51'001) == 8);
}

}  // namespace
}  // namespace lorad::server
