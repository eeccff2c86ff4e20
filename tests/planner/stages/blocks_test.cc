// What blocks take of a step, and what stages do of it: planner/stages/blocks.h.
#include "planner/stages/blocks.h"

#include <catch2/catch.hpp>
#include <numeric>

#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

TEST_CASE("Blocks of a model that can be followed by hand") {
  // q, k, v and o: 16 (16 + 8 + 8) + 16 16 = 768 parameters, 4 each; two heads of 8: 7 16 a token of
  // length. gate, up and down: 16 64 + 32 16 = 1,536. The head: 16 64.
  const std::vector<double> flops = FlopsOfBlocks(Tiny(), 10);
  CHECK(flops == std::vector<double>{3072 + 1120, 6144, 3072 + 1120, 6144 + 4096});
  CHECK(FlopsOfBlocks(Tiny(), 0)[0] == 3072);
}

TEST_CASE("The slowest stage's share") {
  CHECK(SlowestShare(Tiny(), {{0, 4}}, 10) == 1);
  const double all = 2 * 4192 + 6144 + 10240;
  CHECK(SlowestShare(Tiny(), {{0, 2}, {2, 4}}, 10) == Approx((4192 + 10240) / all));
  CHECK(SlowestShare(Tiny(), {{0, 3}, {3, 4}}, 10) == Approx((2 * 4192 + 6144) / all));
  // Of a large model equal stages are nearly equal.
  CHECK(SlowestShare(Llama8B(), {{0, 17}, {17, 34}, {34, 51}, {51, 64}}, 500) ==
        Approx(0.25).margin(0.02));
}

}  // namespace
}  // namespace lorad::planner
