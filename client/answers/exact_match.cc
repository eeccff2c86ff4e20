#include "client/answers/exact_match.h"

#include <pcre2.h>

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

using MatchData =
    std::unique_ptr<pcre2_match_data, decltype([](auto* data) { pcre2_match_data_free(data); })>;

absl::Status Wrong(const std::string& expression, const std::string& what) {
  return Error("USAGE", absl::StrCat("--exact-match '", expression, "' ", what));
}

}  // namespace

struct ExactMatch::Code {
  Code() = default;
  Code(const Code&) = delete;
  ~Code() { pcre2_code_free(compiled); }

  pcre2_code* compiled = nullptr;
};

absl::StatusOr<ExactMatch> ExactMatch::Parse(const std::string& expression) {
  auto code = std::make_shared<Code>();
  int error = 0;
  PCRE2_SIZE place = 0;
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(expression.data()), expression.size(),
                                 PCRE2_UTF, &error, &place, nullptr);
  if (code->compiled == nullptr) {
    PCRE2_UCHAR text[256];
    pcre2_get_error_message(error, text, sizeof text);
    return Wrong(expression,
                 absl::StrCat("is no regular expression: ", reinterpret_cast<const char*>(text),
                              " (at byte ", place, ")"));
  }
  uint32_t groups = 0;
  pcre2_pattern_info(code->compiled, PCRE2_INFO_CAPTURECOUNT, &groups);
  if (groups == 0) return Wrong(expression, "has no group: put ( and ) around what is compared");
  return ExactMatch(std::move(code));
}

ExactMatch::Found ExactMatch::Find(const std::string& text) const {
  const MatchData data(pcre2_match_data_create_from_pattern(code_->compiled, nullptr));
  const int found = pcre2_match(code_->compiled, reinterpret_cast<PCRE2_SPTR>(text.data()),
                                text.size(), 0, 0, data.get(), nullptr);
  // All else that goes wrong is a limit: of steps, of their nesting, of memory for them.
  if (found < 1) return {.group = std::nullopt, .gave_up = found != PCRE2_ERROR_NOMATCH};
  const PCRE2_SIZE* places = pcre2_get_ovector_pointer(data.get());
  if (found < 2 || places[2] == PCRE2_UNSET) return {};
  return {.group = text.substr(places[2], places[3] - places[2])};
}

}  // namespace lorad::client
