#include "client/calls/utf8.h"

#include <cstdint>
#include <string>

#include "absl/strings/str_format.h"
#include "client/calls/error.h"

namespace lorad::client {
namespace {

// The bytes of the character that begins the text; 0: none does.
std::size_t CharacterBytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const std::size_t bytes = lead < 0x80                   ? 1
                            : lead >= 0xC2 && lead < 0xE0 ? 2
                            : (lead & 0xF0) == 0xE0       ? 3
                            : lead >= 0xF0 && lead < 0xF5 ? 4
                                                          : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  std::uint32_t character = bytes == 1 ? lead : lead & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    character = (character << 6) | (byte(i) & 0x3FU);
  }
  // In more bytes than it needs, half of a pair of UTF-16, or beyond the last one.
  const bool overlong = (bytes == 3 && character < 0x800) || (bytes == 4 && character < 0x10000);
  const bool none = (character >= 0xD800 && character < 0xE000) || character > 0x10FFFF;
  return overlong || none ? 0 : bytes;
}

}  // namespace

std::size_t TextBytes(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t bytes = CharacterBytes(text.substr(at));
    if (bytes == 0) break;
    at += bytes;
  }
  return at;
}

absl::Status CheckText(std::string_view what, std::string_view text) {
  const std::size_t bytes = TextBytes(text);
  if (bytes == text.size()) return absl::OkStatus();
  return Error(
      "INVALID_ARGUMENT",
      absl::StrFormat("all text must be UTF-8, and %s is not: at byte %d, 0x%02X begins no "
                      "whole character",
                      std::string(what), bytes, static_cast<unsigned char>(text[bytes])));
}

}  // namespace lorad::client
