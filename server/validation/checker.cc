#include "server/validation/checker.h"

#include <array>
#include <charconv>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::server {
namespace {

// Every digit that distinguishes it from its neighbours: 0.9999995 is not 1.
std::string Shortest(double value) {
  std::array<char, 32> text;
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), value).ptr};
}

}  // namespace

void Checker::Add(const std::string& field, const std::string& description) {
  if (!description.empty()) violations_.push_back({field, description});
}

void Checker::Between(const std::string& field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return;
  Add(field, absl::StrCat("must be between ", low, " and ", high, ", got ", value));
}

void Checker::Real(const std::string& field, double value, double low, double high, char open) {
  const bool above = open == 'l' ? value > low : value >= low;  // false for NaN
  const bool below = open == 'h' ? value < high : value <= high;
  if (above && below) return;
  Add(field,
      absl::StrCat("must be ", open == 'l' ? "greater than " : "at least ", low, " and ",
                   open == 'h' ? "less than " : "at most ", high, ", got ", Shortest(value)));
}

}  // namespace lorad::server
