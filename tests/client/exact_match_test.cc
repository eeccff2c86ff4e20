#include "client/answers/exact_match.h"

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "client/answers/options.h"
#include "client/calls/error.h"
#include "client/calls/utf8.h"

namespace lorad::client {
namespace {

TEST_CASE("the first group where the expression is found first") {
  const auto match = ExactMatch::Parse("#### (-?[0-9,]+)");
  REQUIRE(match.ok());
  CHECK(match->Find("so 2 + 2\n#### 4\n#### 5").group == "4");
  CHECK(match->Find("#### -1,024.").group == "-1,024");
  CHECK_FALSE(match->Find("it is 4").group.has_value());
  CHECK_FALSE(match->Find("it is 4").gave_up);
  const auto either = ExactMatch::Parse("x|(y)");
  REQUIRE(either.ok());
  CHECK_FALSE(either->Find("x").group.has_value());  // it takes no part
  CHECK(either->Find("y").group == "y");
  const auto character = ExactMatch::Parse("#(.)");
  REQUIRE(character.ok());
  CHECK(character->Find("a#\xE2\x82\xAC!").group == "\xE2\x82\xAC");  // whole
}

TEST_CASE("an expression that goes back and forth is given up, and says so") {
  const auto match = ExactMatch::Parse("(a+)+$");
  REQUIRE(match.ok());
  const ExactMatch::Found found = match->Find(std::string(40, 'a') + "b");
  CHECK(found.gave_up);
  CHECK_FALSE(found.group.has_value());
  CHECK(match->Find("aaa").group == "aaa");
}

TEST_CASE("what is no expression, or has no group, is refused") {
  for (const char* wrong : {"(", "[", "####", "a(?:b)"}) {
    CHECK(ReasonOf(ExactMatch::Parse(wrong).status()) == "USAGE");
  }
}

std::string Refusal(const std::string& option, const std::string& value) {
  CLI::App app("", "lora");
  AskOptions options;
  std::int64_t limit = 0;
  AddAskOptions(app, options);
  AddLimit(app, limit);
  std::vector<std::string> reversed = {absl::StrCat(option, "=", value)};
  try {
    app.parse(reversed);
  } catch (const CLI::ParseError& wrong) {
    return wrong.what();
  }
  return "";
}

TEST_CASE("options that cannot be are refused with the range, in few words") {
  struct Case {
    const char *option, *value, *refusal;
  };
  const Case cases[] = {
      {"--seed", "-1", "must be a whole number from 0 to 18446744073709551615, got '-1'"},
      {"--seed", "18446744073709551615", ""},
      {"--max-tokens", "0", "must be a whole number from 1 to 1048576, got '0'"},
      {"--max-tokens", "x", "must be a whole number from 1 to 1048576, got 'x'"},
      {"--temperature", "-0.5", "must be a number from 0 to 100, got '-0.5'"},
      {"--temperature", "nan", "must be a number from 0 to 100, got 'nan'"},
      {"--top-p", "1.5", "must be a number from 0 to 1, got '1.5'"},
      {"--timeout", "0", "must be a whole number from 1 to 2592000, got '0'"},
      {"--limit", "0", "must be a whole number from 1 to 2147483647, got '0'"},
      {"--limit", "3", ""},
  };
  for (const Case& c : cases) {
    INFO(c.option << " " << c.value);
    const std::string refusal = Refusal(c.option, c.value);
    const std::string expected = *c.refusal == '\0' ? "" : absl::StrCat(c.option, ": ", c.refusal);
    CHECK(refusal == expected);
  }
}

TEST_CASE("what is no UTF-8 is named with its byte") {
  struct Case {
    const char* text;
    std::size_t bytes;
  };
  const Case cases[] = {
      {"", 0},
      {"a\xE2\x82\xACz", 5},
      {"\xF0\x9F\x98\x80", 4},
      {"\xF4\x8F\xBF\xBF", 4},      // the last one
      {"ab\xE2\x82", 2},            // half a character
      {"ab\xE2\x82z", 2},           //
      {"a\x80", 1},                 // the second half
      {"\xC0\x80", 0},              // in more bytes than it needs
      {"\xE0\x80\x80", 0},          //
      {"\xF0\x80\x80\x80", 0},      //
      {"\xED\xA0\x80", 0},          // half of a pair of UTF-16
      {"\xF4\x90\x80\x80", 0},      // beyond the last one
      {"\xF8\x88\x80\x80\x80", 0},  //
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK(TextBytes(c.text) == c.bytes);
  }
  CHECK(CheckText("the prompt", "a\xE2\x82\xAC").ok());
  const absl::Status status = CheckText("the prompt", "ab\xE2\x82");
  CHECK(ReasonOf(status) == "INVALID_ARGUMENT");
  CHECK(status.message() ==
        "all text must be UTF-8, and the prompt is not: at byte 2, 0xE2 begins no whole character");
}

}  // namespace
}  // namespace lorad::client
