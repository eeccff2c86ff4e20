#include "storage/files/json.h"

#include <catch2/catch.hpp>
#include <string>

#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

std::string Nested(int levels) {
  return std::string(static_cast<size_t>(levels), '[') +
         std::string(static_cast<size_t>(levels), ']');
}

TEST_CASE("what nests too deep is refused before it is parsed") {
  const std::string in_a_string = "[\"\\\"" + std::string(1000, '[') + "\"]";
  CHECK(ParseJson(Nested(kJsonDepthMax), "R").ok());
  CHECK(ParseJson(in_a_string, "R").ok());
  for (const std::string& text :
       {Nested(kJsonDepthMax + 1), Nested(1'000'000), "{\"a\": " + Nested(1'000'000) + "}",
        std::string(1'000'000, '{')}) {
    const absl::Status status = ParseJson(text, "R").status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(*status.GetPayload(Absl(kReasonPayload)) == "R");
    CHECK(status.message() == "nested deeper than 64 levels");
  }
}

TEST_CASE("a mistake is placed by line and column") {
  const auto complaint = [](std::string_view text) {
    return std::string(ParseJson(text, "R").status().message());
  };
  CHECK_THAT(complaint("{\n  \"a\": 1,\n}"), Catch::StartsWith("not JSON: parse error at line 3"));
  CHECK_THAT(complaint(""), Catch::StartsWith("not JSON: parse error at line 1, column 1: "));
  CHECK_THAT(complaint("[1e400]"), Catch::Contains("1e400"));
  CHECK_THAT(complaint("[NaN]"), Catch::StartsWith("not JSON: "));
  CHECK_THAT(complaint("[\"\xff\xfe\"]"), Catch::StartsWith("not JSON: "));
  CHECK_THAT(complaint("]" + Nested(100)), Catch::StartsWith("n"));
}

}  // namespace
}  // namespace lorad::storage
