// How sequences are shared out to attention calls.
#include <algorithm>
#include <catch2/catch.hpp>

#include "kernels/cuda/attention/calls.h"

namespace lorad::kernels::cuda {
namespace {

std::vector<Segment> Segments(const std::vector<int64_t>& rows) {
  std::vector<Segment> segments;
  int64_t first = 0;
  for (const int64_t count : rows) {
    segments.push_back({.first_row = first, .rows = count});
    first += count;
  }
  return segments;
}

TEST_CASE("Shapes of attention calls") {
  struct Case {
    int64_t rows, tokens_max, length, sequences;
  };
  for (const Case& c : std::vector<Case>{{1, 8192, 128, 64},
                                         {128, 8192, 128, 64},
                                         {129, 8192, 192, 42},
                                         {193, 8192, 256, 32},
                                         {1000, 8192, 1024, 8},
                                         {1000, 4096, 1024, 4},
                                         {1000, 1 << 20, 1024, 8},
                                         {1025, 8192, 1536, 3},
                                         {1600, 8192, 2048, 2},
                                         {8192, 8192, 8192, 1},
                                         {9000, 20000, 12288, 1},
                                         {100, 100, 128, 1}}) {
    INFO(c.rows << " of " << c.tokens_max);
    CHECK(LengthBucket(c.rows) == c.length);
    CHECK(CallSequences(c.length, c.tokens_max) == c.sequences);
  }
}

TEST_CASE("Every sequence is in one call that holds it") {
  const std::vector<std::vector<int64_t>> batches = {
      {1},
      {1024, 1024, 1024, 1024, 1024, 1024, 1024, 1024},
      {17, 130, 900, 333, 512, 64, 1000, 77, 3000, 5000, 2},
      std::vector<int64_t>(300, 5)};
  for (const std::vector<int64_t>& rows : batches) {
    const std::vector<Segment> segments = Segments(rows);
    const AttentionCalls plan = PlanAttention(segments, 10000);
    REQUIRE(plan.rows.size() == plan.first_rows.size());
    std::vector<int64_t> seen;
    int64_t next = 0;
    for (const AttentionCall& call : plan.calls) {
      CHECK(call.first == next);
      next += call.batch;
      CHECK((call.batch == 1 || call.batch * call.rows <= kCallRows));
      CHECK((call.batch == 1 || call.batch * call.rows * call.rows <= kCallScores));
      for (int64_t i = call.first; i < next; ++i) {
        const int64_t count = plan.rows[static_cast<size_t>(i)];
        CHECK((i < call.first + call.sequences) == (count > 0));
        CHECK(count <= call.rows);
        if (count > 0) seen.push_back(plan.first_rows[static_cast<size_t>(i)]);
      }
    }
    CHECK(next == static_cast<int64_t>(plan.rows.size()));
    std::sort(seen.begin(), seen.end());
    std::vector<int64_t> want;
    for (const Segment& segment : segments) want.push_back(segment.first_row);
    CHECK(seen == want);
  }
}

TEST_CASE("Sequences of like length share calls, the longest first") {
  const AttentionCalls plan = PlanAttention(Segments({100, 1024, 100, 1024}), 4096);
  REQUIRE(plan.calls.size() == 1);
  CHECK(plan.calls[0] == AttentionCall{.first = 0, .sequences = 4, .batch = 4, .rows = 1024});
  CHECK(plan.first_rows == std::vector<int32_t>{100, 1224, 0, 1124});
  const AttentionCalls two = PlanAttention(Segments({100, 4000, 100}), 8192);
  REQUIRE(two.calls.size() == 2);
  CHECK(two.calls[0] == AttentionCall{.first = 0, .sequences = 1, .batch = 1, .rows = 4096});
  CHECK(two.calls[1] == AttentionCall{.first = 1, .sequences = 2, .batch = 64, .rows = 128});
}

TEST_CASE("Units of sequences: every row once, the heaviest first") {
  const AttentionUnits plan = PlanUnits(Segments({130, 0, 3, 256}), 128);
  // first row, rows, start, scratch row
  const AttentionUnit a0 = {0, 130, 0, 0}, a1 = {0, 130, 128, 0}, b = {130, 3, 0, 132};
  const AttentionUnit c0 = {133, 256, 0, 136}, c1 = {133, 256, 128, 136};
  CHECK(plan.as_keys == std::vector<AttentionUnit>{c0, a0, c1, b, a1});
  CHECK(plan.as_queries == std::vector<AttentionUnit>{c1, a1, a0, c0, b});
  CHECK(plan.scratch_rows == 392);
  CHECK(PlanUnits(Segments(std::vector<int64_t>(50, 1)), 128).scratch_rows == ScratchRowsMax(50));
}

}  // namespace
}  // namespace lorad::kernels::cuda
