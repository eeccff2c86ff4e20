#pragma once

// Properties of UTF-8 text and its characters, for tokenizers.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace lorad::storage::tokenization {

// Whether `text` is UTF-8 (shortest forms, no surrogates, at most U+10FFFF).
bool IsUtf8(std::string_view text);

bool IsAscii(std::string_view text);

inline bool IsContinuation(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Bytes of the character whose first byte is `lead`. REQUIRES: well-formed text.
inline size_t CharacterBytes(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

// The character that begins at `text[*at]`; moves *at behind it. REQUIRES: well-formed text.
char32_t NextCharacter(std::string_view text, size_t* at);

void AppendCharacter(char32_t character, std::string* out);

size_t CountCharacters(std::string_view text);

// Unicode's White_Space property.
bool IsWhitespace(char32_t character);

// General categories Nd, Nl and No.
bool IsNumeric(char32_t character);

// Whether a regular expression calls it \w: alphabetic, mark, decimal digit, connector or joiner.
bool IsWord(char32_t character);

// Bytes of the white space at the front, or at the back, of `text`.
size_t LeadingWhitespace(std::string_view text);
size_t TrailingWhitespace(std::string_view text);

// GPT-2's alphabet: every byte as one printable character, a space as U+0120.
char32_t ByteCharacter(uint8_t byte);

// The inverse of ByteCharacter: a byte, or -1.
int CharacterByte(char32_t character);

}  // namespace lorad::storage::tokenization
