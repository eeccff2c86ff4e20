#include "storage/tokenization/unicode.h"

#include <unicode/uchar.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace lorad::storage::tokenization {
namespace {

struct ByteAlphabet {
  std::array<char32_t, 256> characters;
  std::array<int16_t, 0x180> bytes;
};

// Printable Latin-1 bytes stand for themselves, the others for U+0100 onwards in their own order.
ByteAlphabet MakeByteAlphabet() {
  ByteAlphabet out;
  out.bytes.fill(-1);
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    out.characters[byte] = printable ? static_cast<char32_t>(byte) : next++;
    out.bytes[out.characters[byte]] = static_cast<int16_t>(byte);
  }
  return out;
}

const ByteAlphabet& Alphabet() {
  static const ByteAlphabet alphabet = MakeByteAlphabet();
  return alphabet;
}

}  // namespace

bool IsAscii(std::string_view text) {
  constexpr uint64_t kHighBits = 0x8080808080808080;
  size_t at = 0;
  for (; at + 8 <= text.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, text.data() + at, 8);
    if (word & kHighBits) return false;
  }
  return std::all_of(text.begin() + at, text.end(), [](char c) { return (c & 0x80) == 0; });
}

bool IsUtf8(std::string_view text) {
  if (IsAscii(text)) return true;
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  for (size_t at = 0; at < text.size();) {
    UChar32 character;
    U8_NEXT(bytes, at, text.size(), character);
    if (character < 0) return false;
  }
  return true;
}

char32_t NextCharacter(std::string_view text, size_t* at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  if (bytes[*at] < 0x80) return bytes[(*at)++];
  UChar32 character;
  U8_NEXT_UNSAFE(bytes, *at, character);
  return static_cast<char32_t>(character);
}

void AppendCharacter(char32_t character, std::string* out) {
  uint8_t bytes[U8_MAX_LENGTH];
  size_t count = 0;
  U8_APPEND_UNSAFE(bytes, count, character);
  out->append(reinterpret_cast<const char*>(bytes), count);
}

size_t CountCharacters(std::string_view text) {
  return text.size() - static_cast<size_t>(std::count_if(text.begin(), text.end(), IsContinuation));
}

bool IsWhitespace(char32_t character) { return u_isUWhiteSpace(static_cast<UChar32>(character)); }

bool IsNumeric(char32_t character) {
  return (U_GET_GC_MASK(static_cast<UChar32>(character)) & U_GC_N_MASK) != 0;
}

bool IsWord(char32_t character) {
  const auto c = static_cast<UChar32>(character);
  return u_isUAlphabetic(c) ||
         (U_GET_GC_MASK(c) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0 ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

size_t LeadingWhitespace(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    if (!IsWhitespace(NextCharacter(text, &at))) return begin;
  }
  return text.size();
}

size_t TrailingWhitespace(std::string_view text) {
  size_t end = text.size();
  while (end > 0) {
    size_t begin = end - 1;
    while (IsContinuation(text[begin])) --begin;
    size_t at = begin;
    if (!IsWhitespace(NextCharacter(text, &at))) break;
    end = begin;
  }
  return text.size() - end;
}

char32_t ByteCharacter(uint8_t byte) { return Alphabet().characters[byte]; }

int CharacterByte(char32_t character) {
  return character < Alphabet().bytes.size() ? Alphabet().bytes[character] : -1;
}

}  // namespace lorad::storage::tokenization
