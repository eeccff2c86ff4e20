// Whether an answer is a row's own: the first group of a regular expression in both.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace lorad::client {

class ExactMatch {
 public:
  // An expression of PCRE2, of characters. USAGE: it is none, or has no group.
  static absl::StatusOr<ExactMatch> Parse(const std::string& expression);

  struct Found {
    std::optional<std::string> group;
    // Whether it is there nobody knows: an expression that tries more ways than PCRE2's limit
    // (10,000,000), as one does that goes back and forth, is given up.
    bool gave_up = false;
  };
  // The first group where the expression is found first; none where the group takes no part in it.
  Found Find(const std::string& text) const;

 private:
  struct Code;
  explicit ExactMatch(std::shared_ptr<const Code> code) : code_(std::move(code)) {}

  std::shared_ptr<const Code> code_;  // copies share it
};

}  // namespace lorad::client
