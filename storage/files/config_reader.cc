#include "storage/files/config_reader.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

// A value for a message: at most 100 bytes of it.
std::string Shown(const nlohmann::json& value) {
  std::string text = value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  if (text.size() > 100) text = absl::StrCat(text.substr(0, 100), "...");
  return text;
}

}  // namespace

ConfigReader::ConfigReader(const nlohmann::json& object, std::string where)
    : object_(object), where_(std::move(where)) {
  assert(object.is_object());
}

const nlohmann::json* ConfigReader::Find(std::string_view key) {
  const auto [name, inserted] = seen_.emplace(key);
  const auto found = object_.find(*name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigReader::Has(std::string_view key) const {
  const auto found = object_.find(std::string(key));
  return found != object_.end() && !found->is_null();
}

int64_t ConfigReader::Integer(std::string_view key, int64_t least, int64_t most,
                              std::optional<int64_t> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Problem(absl::StrCat(where_, Absl(key), " is missing"));
    return fallback.value_or(least);
  }
  // An unsigned number over 2^63 must not wrap.
  const bool fits = value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < least || value->get<int64_t>() > most) {
    Problem(absl::StrCat(where_, Absl(key), " is ", Shown(*value),
                         "; it must be a whole number from ", least, " to ", most));
    return fallback.value_or(least);
  }
  return value->get<int64_t>();
}

double ConfigReader::Number(std::string_view key, double least, double most,
                            std::optional<double> fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) {
    if (!fallback) Problem(absl::StrCat(where_, Absl(key), " is missing"));
    return fallback.value_or(least);
  }
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most)) {
    Problem(absl::StrCat(where_, Absl(key), " is ", Shown(*value), "; it must be a number from ",
                         least, " to ", most));
    return fallback.value_or(least);
  }
  return number;
}

bool ConfigReader::Boolean(std::string_view key, bool fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return fallback;
  if (value->is_boolean()) return value->get<bool>();
  Problem(absl::StrCat(where_, Absl(key), " is ", Shown(*value), "; it must be true or false"));
  return fallback;
}

std::string ConfigReader::String(std::string_view key, std::string_view fallback) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr) return std::string(fallback);
  if (value->is_string()) return value->get<std::string>();
  Problem(absl::StrCat(where_, Absl(key), " is ", Shown(*value), "; it must be a string"));
  return std::string(fallback);
}

void ConfigReader::Ignore(const std::vector<std::string_view>& keys) {
  for (const std::string_view key : keys) seen_.emplace(key);
}

void ConfigReader::OnlyNeutral(std::string_view key, const nlohmann::json& neutral) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || *value == neutral) return;
  Problem(absl::StrCat(where_, Absl(key), " = ", Shown(*value), " is not implemented (only ",
                       Shown(neutral), ")"));
}

void ConfigReader::RefuseRest() {
  for (const auto& [key, value] : object_.items()) {
    if (value.is_null() || seen_.count(key) != 0) continue;
    Problem(absl::StrCat(where_, Quoted(key), " = ", Shown(value),
                         " is not known and might change results"));
  }
}

void ConfigReader::OnlyEmpty(std::string_view key) {
  const nlohmann::json* value = Find(key);
  if (value == nullptr || *value == false || *value == "") return;
  if (value->is_structured() && value->empty()) return;
  Problem(absl::StrCat(where_, Absl(key), " = ", Shown(*value), " is not implemented"));
}

void Problems::Add(const Problems& others) {
  messages_.insert(messages_.end(), others.messages_.begin(), others.messages_.end());
}

absl::Status Problems::Result(std::string_view reason) const {
  if (messages_.empty()) return absl::OkStatus();
  constexpr size_t kShown = 20;
  std::vector<std::string> shown(messages_.begin(),
                                 messages_.begin() + std::min(messages_.size(), kShown));
  if (messages_.size() > kShown) {
    shown.push_back(absl::StrCat("and ", messages_.size() - kShown, " more"));
  }
  return Refuse(reason, absl::StrJoin(shown, "; "));
}

}  // namespace lorad::storage
