#include "server/validation/names.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

bool IsLowerOrDigit(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9'); }

bool IsControl(char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; }

// Formats that stand between letters without being seen, ends of lines, and orders to write from
// right to left; not the two joiners, which languages and emoji need.
bool IsUnseen(UChar32 c) {
  constexpr UChar32 kNonJoiner = 0x200c, kJoiner = 0x200d;
  return c != kNonJoiner && c != kJoiner &&
         (U_GET_GC_MASK(c) & (U_GC_CF_MASK | U_GC_ZL_MASK | U_GC_ZP_MASK)) != 0;
}

}  // namespace

std::string CheckName(const std::string& name) {
  constexpr char kRule[] =
      "lower-case letters, digits and '-', beginning and ending with a letter or a digit";
  if (name.empty()) return "must be given";
  if (name.size() > kNameBytesMax) {
    return absl::StrCat("must have at most ", kNameBytesMax, " characters, got ", name.size());
  }
  const bool characters_ok =
      std::all_of(name.begin(), name.end(), [](char c) { return IsLowerOrDigit(c) || c == '-'; });
  if (!characters_ok || name.front() == '-' || name.back() == '-') {
    return absl::StrCat("must be ", kRule, ", got '", name, "'");
  }
  return "";
}

std::string CheckWorkerName(const std::string& name) {
  if (name.empty()) return "must be given";
  if (name.size() > kNameBytesMax) {
    return absl::StrCat("must have at most ", kNameBytesMax, " characters, got ", name.size());
  }
  const bool ok = std::all_of(name.begin(), name.end(), [](char c) {
    return IsLowerOrDigit(c) || (c >= 'A' && c <= 'Z') || c == '.' || c == '_' || c == '-';
  });
  return ok ? "" : "must be letters, digits, '.', '_' and '-' (--name)";
}

std::string CheckRequestId(const std::string& request_id) {
  if (request_id.size() > kRequestIdBytesMax) {
    return absl::StrCat("must have at most ", kRequestIdBytesMax, " characters, got ",
                        request_id.size());
  }
  if (!std::all_of(request_id.begin(), request_id.end(),
                   [](char c) { return c >= 0x20 && c < 0x7f; })) {
    return "must be printable ASCII characters";
  }
  return "";
}

std::string CheckText(const std::string& text, int bytes_max) {
  if (text.size() > static_cast<size_t>(bytes_max)) {
    return absl::StrCat("must have at most ", bytes_max, " bytes, got ", text.size());
  }
  // In UTF-8 the control characters from U+0080 to U+009F are 0xc2 and a byte up to 0x9f.
  const auto is_c1 = [](char a, char b) {
    return a == '\xc2' && static_cast<unsigned char>(b) <= 0x9f;
  };
  if (std::any_of(text.begin(), text.end(), IsControl) ||
      std::adjacent_find(text.begin(), text.end(), is_c1) != text.end()) {
    return "must not hold control characters";
  }
  return "";
}

std::string CheckVisibleText(const std::string& text, int bytes_max) {
  if (std::string wrong = CheckText(text, bytes_max); !wrong.empty()) return wrong;
  const auto size = static_cast<int32_t>(text.size());
  for (int32_t at = 0; at < size;) {
    UChar32 character;  // below 0 where it is no UTF-8, which CheckUtf8 says
    U8_NEXT(text.data(), at, size, character);
    if (character < 0 || !IsUnseen(character)) continue;
    return absl::StrFormat(
        "must not hold characters that are not seen or turn the direction of text, got U+%04X",
        static_cast<uint32_t>(character));
  }
  return "";
}

std::string CheckLabelKey(const std::string& key) {
  if (key.empty() || key.size() > kLabelKeyBytesMax) {
    return absl::StrCat("keys must have 1 to ", kLabelKeyBytesMax, " characters, got ", key.size());
  }
  const bool ok = std::all_of(key.begin(), key.end(), [](char c) {
    return IsLowerOrDigit(c) || c == '.' || c == '_' || c == '/' || c == '-';
  });
  if (!ok) return "keys must be lower-case letters, digits, '.', '_', '/' and '-'";
  return "";
}

std::string CheckPageSize(int page_size, int max, int default_size) {
  if (page_size >= 0 && page_size <= max) return "";
  return absl::StrCat("must be between 1 and ", max, ", or 0 for ", default_size, ", got ",
                      page_size);
}

}  // namespace lorad::server
