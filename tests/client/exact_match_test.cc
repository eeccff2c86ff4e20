#include "client/answers/exact_match.h"

#include <catch2/catch.hpp>

#include "client/calls/error.h"

namespace lorad::client {
namespace {

TEST_CASE("the first group where the expression is found first") {
  const auto match = ExactMatch::Parse("#### (-?[0-9,]+)");
  REQUIRE(match.ok());
  CHECK(match->Find("so 2 + 2\n#### 4\n#### 5") == "4");
  CHECK(match->Find("#### -1,024.") == "-1,024");
  CHECK_FALSE(match->Find("it is 4").has_value());
  const auto either = ExactMatch::Parse("x|(y)");
  REQUIRE(either.ok());
  CHECK(either->Find("x") == "");
  const auto character = ExactMatch::Parse("#(.)");
  REQUIRE(character.ok());
  CHECK(character->Find("a#\xE2\x82\xAC!") == "\xE2\x82\xAC");  // whole
}

TEST_CASE("what is no expression, or has no group, is refused") {
  for (const char* wrong : {"(", "[", "####", "a(?:b)"}) {
    CHECK(ReasonOf(ExactMatch::Parse(wrong).status()) == "USAGE");
  }
}

}  // namespace
}  // namespace lorad::client
