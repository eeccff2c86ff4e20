#include "server/validation/page_token.h"

#include <cstdint>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr size_t kSumBytes = 16;

// FNV-1a over scope and cursor: catches a token of another list and a mangled one; it keeps no
// secret.
std::string Sum(const std::string& scope, const std::string& cursor) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const std::string* part : {&scope, &cursor}) {
    for (const unsigned char c : *part) hash = (hash ^ c) * 0x100000001b3;
    hash = (hash ^ 0xff) * 0x100000001b3;
  }
  return absl::StrCat(absl::Hex(hash, absl::kZeroPad16));
}

}  // namespace

std::string MakePageToken(const std::string& scope, const std::string& cursor) {
  return absl::WebSafeBase64Escape(Sum(scope, cursor) + cursor);
}

absl::StatusOr<std::string> ReadPageToken(const std::string& scope, const std::string& token) {
  if (token.empty()) return "";
  std::string text;
  if (token.size() <= kPageTokenBytesMax && absl::WebSafeBase64Unescape(token, &text) &&
      text.size() >= kSumBytes) {
    std::string cursor = text.substr(kSumBytes);
    if (text.compare(0, kSumBytes, Sum(scope, cursor)) == 0) return cursor;
  }
  return InvalidFields("request",
                       {{"page_token", "is not the next_page_token of a list with this filter"}});
}

}  // namespace lorad::server
