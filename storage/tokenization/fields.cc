#include "storage/tokenization/fields.h"

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage::tokenization {

absl::Status InvalidTokenizer(std::string_view where, std::string_view what) {
  return Refuse("TOKENIZER_INVALID",
                absl::StrCat(Absl(where), where.empty() ? "" : ": ", Absl(what)));
}

absl::Status UnsupportedTokenizer(std::string_view where, std::string_view what) {
  return Refuse("TOKENIZER_UNSUPPORTED",
                absl::StrCat(Absl(where), where.empty() ? "" : ": ", Absl(what)));
}

Fields::Fields(std::string where, const Json& json) : where_(std::move(where)), json_(json) {
  if (!json.is_object()) Fail(InvalidTokenizer(where_, "must be an object"));
}

const Json* Fields::Get(const char* name) {
  seen_.insert(name);
  if (!ok()) return nullptr;
  const auto found = json_.find(name);
  return found == json_.end() ? nullptr : &*found;
}

const Json* Fields::Require(const char* name, bool right_type(const Json&), std::string_view type) {
  const Json* value = Get(name);
  if (value != nullptr && right_type(*value)) return value;
  Fail(InvalidTokenizer(where_, absl::StrCat(name, value == nullptr ? " is missing, it" : "",
                                             " must be ", Absl(type))));
  return nullptr;
}

bool Fields::Bool(const char* name, std::optional<bool> standard) {
  const Json* value = Get(name);
  if ((value == nullptr || value->is_null()) && standard.has_value()) return *standard;
  value = Require(
      name, [](const Json& json) { return json.is_boolean(); }, "true or false");
  return value != nullptr && value->get<bool>();
}

std::string Fields::Text(const char* name) {
  const Json* value = Require(
      name, [](const Json& json) { return json.is_string(); }, "a string");
  return value == nullptr ? "" : value->get<std::string>();
}

std::optional<std::string> Fields::OptionalText(const char* name) {
  const Json* value = Get(name);
  if (value == nullptr || value->is_null()) return std::nullopt;
  return Text(name);
}

uint64_t Fields::Count(const char* name, uint64_t max) {
  const Json* value = Require(
      name, [](const Json& json) { return json.is_number_unsigned(); }, "a whole number");
  if (value == nullptr) return 0;
  if (value->get<uint64_t>() <= max) return value->get<uint64_t>();
  Fail(InvalidTokenizer(where_, absl::StrCat(name, " must be at most ", max)));
  return 0;
}

const Json* Fields::Array(const char* name) {
  return Require(
      name, [](const Json& json) { return json.is_array(); }, "a list");
}

const Json* Fields::Object(const char* name) {
  return Require(
      name, [](const Json& json) { return json.is_object(); }, "an object");
}

const Json* Fields::Any(const char* name) {
  const Json* value = Get(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

void Fields::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

absl::Status Fields::Finish() {
  if (!ok()) return status_;
  for (const auto& [name, value] : json_.items()) {
    if (!seen_.contains(name)) {
      return UnsupportedTokenizer(where_, absl::StrCat("option \"", name, "\" is not supported"));
    }
  }
  return absl::OkStatus();
}

PatternField ReadPattern(Fields* fields, const char* name) {
  PatternField out;
  const Json* pattern = fields->Object(name);
  if (pattern == nullptr) return out;
  Fields inner(absl::StrCat(fields->where(), ": ", name), *pattern);
  out.regex = inner.Any("Regex") != nullptr;
  out.text = inner.Text(out.regex ? "Regex" : "String");
  if (out.text.empty()) inner.Fail(InvalidTokenizer(inner.where(), "must not be empty"));
  fields->Fail(inner.Finish());
  return out;
}

}  // namespace lorad::storage::tokenization
