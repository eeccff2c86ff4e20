#include "storage/files/json.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

// Brackets outside of strings. Right up to the first mistake, behind which the parser reads
// nothing.
bool NestsTooDeep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    if (in_string) {
      if (c == '\\') ++at;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kJsonDepthMax) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

// "[json.exception.parse_error.101] parse error at line 1, column 9: ..." without its tag. Its
// quotation of the text may end inside a character.
std::string Complaint(const nlohmann::json::exception& exception) {
  std::string what = exception.what();
  if (const size_t tag = what.find("] "); tag != std::string::npos) what.erase(0, tag + 2);
  std::erase_if(what, [](char c) { return c < ' ' || c > '~'; });
  if (what.size() > 300) what.resize(300);
  return what;
}

}  // namespace

absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view reason) {
  if (NestsTooDeep(text)) {
    return Refuse(reason, absl::StrCat("nested deeper than ", kJsonDepthMax, " levels"));
  }
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& exception) {
    return Refuse(reason, absl::StrCat("not JSON: ", Complaint(exception)));
  }
}

}  // namespace lorad::storage
