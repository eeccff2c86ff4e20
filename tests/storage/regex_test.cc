#include "storage/tokenization/regex.h"

#include "catch2/catch.hpp"
#include "storage/files/errors.h"

namespace lorad::storage::tokenization {
namespace {

// The matches, joined by '|'.
std::string Matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  INFO(pattern << ": " << regex.status());
  REQUIRE(regex.ok());
  std::string out;
  REQUIRE(regex
              ->Split(text,
                      [&](size_t begin, size_t end, bool match) {
                        if (match) out += text.substr(begin, end - begin) + "|";
                      })
              .ok());
  return out;
}

TEST_CASE("patterns find what Oniguruma finds") {
  struct Case {
    std::string pattern, text, expected;
  };
  const std::vector<Case> table = {
      {"a+", "baab", "aa|"},
      {"[^a-c]", "abxc", "x|"},
      {"a{2,3}", "aaaaa", "aaa|aa|"},
      {"(?i:'S)", "it's it'\u017F", "'s|'\u017F|"},
      {" ?\\p{L}+", "ab \u00e9\u4f60 1", "ab| \u00e9\u4f60|"},
      {"\\s+(?!\\S)|\\s+", "a   b", "  | |"},
      {"\\s", "a\u180Eb\u3000c", "\u3000|"},  // U+180E is no white space since Unicode 6.3
      {"[^\\s]+", "a\u0085b", "a|b|"},
      {"\\d", "1\u0663x", "1|\u0663|"},
      {".", "a\n", "a|"},
      {"\\u0041", "xA", "A|"},
      {"a*+b", "aab", "aab|"},
      {"(ab|c)+", "abcab", "abcab|"},
      {"\\.", "a.b", ".|"},
  };
  for (const Case& one : table) {
    INFO(one.pattern);
    CHECK(Matches(one.pattern, one.text) == one.expected);
  }
}

TEST_CASE("parts cover the text") {
  const Regex regex = Regex::Literal("ab");
  std::string out;
  const std::string text = "xabyab";
  REQUIRE(regex
              .Split(text,
                     [&](size_t begin, size_t end, bool match) {
                       out += text.substr(begin, end - begin) + (match ? "! " : " ");
                     })
              .ok());
  CHECK(out == "x ab! y ab! ");
}

TEST_CASE("what the two libraries read differently, or slowly, is refused") {
  for (const std::string pattern :
       {"\\w",    "\\b",     "^a",    "a$",     "(?<=a)b", "(?i)a", "(?>a)",   "[[:alpha:]]",
        "[a&&b]", "[\\S]",   "a{,3}", "a{2}+",  "a**",     "(a+)+", "(a",      "a)",
        "[a",     "a\\",     "*a",    "a{1",    "a{9999}", "\\p{",  "\\p{L1}", "\\x80",
        "[]",     "[\\s-z]", "a*",    "(?=a)*", "\\k<a>",  "\\1",   "\xFF",    "(*ACCEPT)"}) {
    INFO(pattern);
    const absl::Status status = Regex::Compile(pattern).status();
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(*status.GetPayload(Absl(kReasonPayload)) == "TOKENIZER_UNSUPPORTED");
  }
}

}  // namespace
}  // namespace lorad::storage::tokenization
