#include "planner/cost/move.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

namespace lorad::planner {
namespace {

TEST_CASE("Moving pays where what is saved exceeds its cost") {
  struct Case {
    MoveQuestion question;
    std::string text;
  };
  const Case cases[] = {
      {{10, 9, 1000, 60, 120},
       "move: 1000 steps of 9.000 s instead of 10.000 s save 1000.0 s, moving costs 180.0 s"},
      {{10, 9, 180, 60, 120},
       "stay: 180 steps of 9.000 s instead of 10.000 s save 180.0 s, moving costs 180.0 s"},
      {{10, 9, 181, 60, 120},
       "move: 181 steps of 9.000 s instead of 10.000 s save 181.0 s, moving costs 180.0 s"},
      {{10, 9.9, 1e6, 60, 120}, "stay: a step of 9.900 s is less than 2.0 % below 10.000 s"},
      {{10, 11, 1e6, 0, 0}, "stay: a step of 11.000 s is less than 2.0 % below 10.000 s"},
      {{10, 10, 1e6, 0, 0, 0},
       "stay: 1000000 steps of 10.000 s instead of 10.000 s save 0.0 s, moving costs 0.0 s"},
      {{10, 9, 0, 0, 0},
       "stay: 0 steps of 9.000 s instead of 10.000 s save 0.0 s, moving costs 0.0 s"},
  };
  for (const Case& c : cases) CHECK(DecideMove(c.question)->ToText() == c.text);
  CHECK(DecideMove({10, 9, 1000, 60, 120})->gain_s == Approx(820));
}

TEST_CASE("Questions that make no sense are refused") {
  const double inf = std::numeric_limits<double>::infinity();
  for (const MoveQuestion& question :
       {MoveQuestion{0, 1, 1, 1, 1}, MoveQuestion{1, 0, 1, 1, 1}, MoveQuestion{1, 1, -1, 1, 1},
        MoveQuestion{1, 1, inf, 1, 1}, MoveQuestion{1, 1, 1, std::nan(""), 1},
        MoveQuestion{1, 1, 1, 1, -1}}) {
    CHECK_FALSE(DecideMove(question).ok());
  }
}

}  // namespace
}  // namespace lorad::planner
