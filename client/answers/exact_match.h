// Whether an answer is a row's own: the first group of a regular expression in both.
#pragma once

#include <optional>
#include <regex>
#include <string>

#include "absl/status/statusor.h"

namespace lorad::client {

class ExactMatch {
 public:
  // An expression of ECMAScript. USAGE: it is none, or has no group.
  static absl::StatusOr<ExactMatch> Parse(const std::string& expression);

  // The first group where the expression is found first; none: it is not found.
  std::optional<std::string> Find(const std::string& text) const;

 private:
  explicit ExactMatch(std::regex expression) : expression_(std::move(expression)) {}

  std::regex expression_;
};

}  // namespace lorad::client
