// The range of a number that an option takes.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <type_traits>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace lorad::client {

// Says by itself what is wrong with any text that is no such number, so RefuseWrongNumbers
// (usage.h) leaves the option alone. CLI11's own ranges print 300 digits of a double, and let -1
// pass for the largest whole number. `instead` is what the error ends in: what else may be meant.
template <typename Number>
CLI::Validator From(Number least, Number most, const std::string& instead = "") {
  const std::string range = absl::StrCat("from ", least, " to ", most);
  return CLI::Validator(
      [=](std::string& text) {
        Number number{};
        bool within = false;
        if constexpr (std::is_floating_point_v<Number>) {
          within = absl::SimpleAtod(text, &number);
        } else {
          within = absl::SimpleAtoi(text, &number);
        }
        within = within && number >= least && number <= most;
        const char* const kind = std::is_floating_point_v<Number> ? "number" : "whole number";
        return within ? std::string()
                      : absl::StrCat("must be a ", kind, " ", range, ", got '", text, "'", instead);
      },
      range);
}

// Whether the text of an option's type (CLI::Option::get_type_name) has such a range.
inline bool HasRange(const std::string& type_name) {
  return type_name.find(":from ") != std::string::npos;
}

}  // namespace lorad::client
