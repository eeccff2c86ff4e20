#include "planner/pipeline/grouping.h"

#include <catch2/catch.hpp>

#include "planner/window/pack.h"

namespace lorad::planner {
namespace {

TEST_CASE("The longest with the shortest") {
  struct Case {
    std::vector<double> means;
    int groups;
    std::string expected;
  };
  const Case cases[] = {
      {{5}, 1, "[0]"},
      {{100, 400, 200, 300}, 1, "[1 0 3 2]"},
      {{100, 400, 200, 300}, 2, "[1 0] [3 2]"},
      {{100, 400, 200, 300}, 3, "[1 0] [3] [2]"},
      {{100, 400, 200, 300}, 4, "[1] [3] [2] [0]"},
      {{1, 2, 3, 4, 5, 6}, 2, "[5 0 3] [4 1 2]"},
      {{7, 7, 7, 7}, 2, "[3 0] [2 1]"},
  };
  for (const Case& c : cases) CHECK(ToText(GroupAdapters(c.means, c.groups)) == c.expected);
}

std::vector<Microbatch> Batch(const std::string& job, int64_t step, size_t microbatches) {
  return std::vector<Microbatch>(microbatches, {0, {{.job = job, .step = step, .tokens = 1}}});
}

TEST_CASE("Groups take turns, a global batch each") {
  const auto order = Interleave({{Batch("a", 1, 2), Batch("a", 2, 1), Batch("a", 3, 1)},
                                 {Batch("b", 1, 1), Batch("b", 2, 2)}},
                                10);
  std::string text;
  for (const Microbatch& microbatch : order) text += ToText(microbatch) + "; ";
  CHECK(text ==
        "10: train a/1#0[1]; 11: train a/1#0[1]; 12: train b/1#0[1]; 13: train a/2#0[1]; "
        "14: train b/2#0[1]; 15: train b/2#0[1]; 16: train a/3#0[1]; ");
  CHECK(Interleave({}).empty());
}

}  // namespace
}  // namespace lorad::planner
