#pragma once

// Reads one JSON object of a tokenizer.json field by field, and refuses what nobody asked for.

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace lorad::storage::tokenization {

using Json = nlohmann::json;

// INVALID_ARGUMENT with reason TOKENIZER_INVALID, or TOKENIZER_UNSUPPORTED. `where` is the place in
// the file, empty for the file itself.
absl::Status InvalidTokenizer(std::string_view where, std::string_view what);
absl::Status UnsupportedTokenizer(std::string_view where, std::string_view what);

// The first error sticks; the getters then give their defaults. `json` must outlive this object.
class Fields {
 public:
  // `where` names the object in errors, as "normalizer"; empty: the file.
  Fields(std::string where, const Json& json);

  bool Bool(const char* name, std::optional<bool> standard = std::nullopt);
  std::string Text(const char* name);
  std::optional<std::string> OptionalText(const char* name);  // absent or null: nothing
  uint64_t Count(const char* name, uint64_t max);
  // An object or an array; null if it is missing (an error).
  const Json* Array(const char* name);
  const Json* Object(const char* name);
  // Anything, or null if it is missing or JSON's null.
  const Json* Any(const char* name);
  // A field that changes nothing here.
  void Ignore(const char* name) { seen_.insert(name); }

  void Fail(const absl::Status& status);
  const std::string& where() const { return where_; }
  bool ok() const { return status_.ok(); }

  // The first error, or that the object has a field that was not asked for.
  absl::Status Finish();

 private:
  const Json* Get(const char* name);
  const Json* Require(const char* name, bool right_type(const Json&), std::string_view type);

  std::string where_;
  const Json& json_;
  std::set<std::string> seen_;
  absl::Status status_;
};

// {"String": ".."} or {"Regex": ".."}: which one, and its text.
struct PatternField {
  bool regex = false;
  std::string text;
};
PatternField ReadPattern(Fields* fields, const char* name);

}  // namespace lorad::storage::tokenization
