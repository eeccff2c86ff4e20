#include "client/answers/exact_match.h"

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"

namespace lorad::client {

absl::StatusOr<ExactMatch> ExactMatch::Parse(const std::string& expression) {
  try {
    std::regex parsed(expression, std::regex::ECMAScript);
    if (parsed.mark_count() == 0) {
      return Error("USAGE", absl::StrCat("--exact-match '", expression,
                                         "' has no group: put ( and ) around what is compared"));
    }
    return ExactMatch(std::move(parsed));
  } catch (const std::regex_error& wrong) {
    return Error("USAGE", absl::StrCat("--exact-match '", expression,
                                       "' is no regular expression: ", wrong.what()));
  }
}

std::optional<std::string> ExactMatch::Find(const std::string& text) const {
  std::smatch found;
  try {
    if (!std::regex_search(text, found, expression_)) return std::nullopt;
  } catch (const std::regex_error&) {  // it would take too long, or too much of the stack
    return std::nullopt;
  }
  return found[1].str();
}

}  // namespace lorad::client
