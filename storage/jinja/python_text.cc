#include "storage/jinja/python_text.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <cstdio>

#include "storage/tokenization/unicode.h"

namespace lorad::storage::jinja {
namespace {

using tokenization::AppendCharacter;
using tokenization::CharacterBytes;
using tokenization::IsContinuation;
using tokenization::NextCharacter;

std::string ToUtf8(const icu::UnicodeString& text) {
  std::string out;
  text.toUTF8String(out);
  return out;
}

icu::UnicodeString FromUtf8(std::string_view text) {
  return icu::UnicodeString::fromUTF8(
      icu::StringPiece(text.data(), static_cast<int32_t>(text.size())));
}

bool IsLineBreak(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 ||
         c == 0x2029;
}

std::string Escaped(const char* format, uint32_t character) {
  char buffer[16];
  std::snprintf(buffer, sizeof buffer, format, character);
  return buffer;
}

std::string TitleCharacter(char32_t character) {
  std::string out;
  AppendCharacter(static_cast<char32_t>(u_totitle(static_cast<UChar32>(character))), &out);
  return out;
}

}  // namespace

bool IsPythonSpace(char32_t character) {
  return tokenization::IsWhitespace(character) || (character >= 0x1C && character <= 0x1F);
}

std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters) {
  const auto strips = [&](std::string_view character) {
    if (characters.has_value()) return characters->find(character) != std::string_view::npos;
    size_t at = 0;
    return IsPythonSpace(NextCharacter(character, &at));
  };
  while (side != Side::kRight && !text.empty() && strips(text.substr(0, CharacterBytes(text[0])))) {
    text.remove_prefix(CharacterBytes(text[0]));
  }
  while (side != Side::kLeft && !text.empty()) {
    size_t begin = text.size() - 1;
    while (begin > 0 && IsContinuation(text[begin])) --begin;
    if (!strips(text.substr(begin))) break;
    text = text.substr(0, begin);
  }
  return text;
}

std::string Upper(std::string_view text) {
  return ToUtf8(FromUtf8(text).toUpper(icu::Locale::getRoot()));
}

std::string Lower(std::string_view text) {
  return ToUtf8(FromUtf8(text).toLower(icu::Locale::getRoot()));
}

std::string Capitalize(std::string_view text) {
  if (text.empty()) return "";
  size_t at = 0;
  const char32_t first = NextCharacter(text, &at);
  return TitleCharacter(first) + Lower(text.substr(at));
}

std::string Title(std::string_view text) {
  std::string out;
  bool in_word = false;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t character = NextCharacter(text, &at);
    out += in_word ? Lower(text.substr(begin, at - begin)) : TitleCharacter(character);
    in_word = u_hasBinaryProperty(static_cast<UChar32>(character), UCHAR_CASED);
  }
  return out;
}

std::string JinjaTitle(std::string_view text) {
  std::string out;
  size_t word = 0;
  const auto flush = [&](size_t end) {
    if (word == end) return;
    const size_t first = CharacterBytes(text[word]);
    out += Upper(text.substr(word, first)) + Lower(text.substr(word + first, end - word - first));
  };
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCharacter(text, &at);
    if (!IsPythonSpace(c) && c != '-' && c != '(' && c != '{' && c != '[' && c != '<') continue;
    flush(begin);
    out += text.substr(begin, at - begin);
    word = at;
  }
  flush(text.size());
  return out;
}

std::vector<std::string> Split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max) {
  std::vector<std::string> out;
  const auto full = [&] { return max >= 0 && static_cast<int64_t>(out.size()) >= max; };
  if (separator.has_value()) {
    size_t done = 0;
    for (size_t at; !full() && (at = text.find(*separator, done)) != std::string_view::npos;) {
      out.emplace_back(text.substr(done, at - done));
      done = at + separator->size();
    }
    out.emplace_back(text.substr(done));
    return out;
  }
  text = Strip(text, Side::kLeft);
  while (!text.empty()) {
    if (full()) {
      out.emplace_back(text);
      break;
    }
    size_t end = 0;
    for (size_t at = 0; at < text.size(); end = at) {
      if (IsPythonSpace(NextCharacter(text, &at))) break;
    }
    out.emplace_back(text.substr(0, end));
    text = Strip(text.substr(end), Side::kLeft);
  }
  return out;
}

std::vector<std::string> SplitLines(std::string_view text) {
  std::vector<std::string> out;
  size_t line = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t character = NextCharacter(text, &at);
    if (!IsLineBreak(character)) continue;
    if (character == '\r' && at < text.size() && text[at] == '\n') ++at;
    out.emplace_back(text.substr(line, begin - line));
    line = at;
  }
  if (line < text.size()) out.emplace_back(text.substr(line));
  return out;
}

std::optional<std::string> ReplaceText(std::string_view text, std::string_view from,
                                       std::string_view to, int64_t max, size_t max_bytes) {
  std::string out;
  size_t done = 0;
  size_t search = 0;
  for (int64_t count = 0; (max < 0 || count < max) && search <= text.size(); ++count) {
    const size_t at = text.find(from, search);
    if (at == std::string_view::npos) break;
    out += text.substr(done, at - done);
    out += to;
    if (out.size() > max_bytes) return std::nullopt;
    done = at + from.size();
    search = done;
    if (from.empty()) {  // between all characters, and at both ends
      if (done == text.size()) break;
      search = done + CharacterBytes(text[done]);
    }
  }
  out += text.substr(done);
  if (out.size() > max_bytes) return std::nullopt;
  return out;
}

std::vector<std::string> Characters(std::string_view text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t bytes = CharacterBytes(text[at]);
    out.emplace_back(text.substr(at, bytes));
    at += bytes;
  }
  return out;
}

std::string QuoteText(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const bool has_double = text.find('"') != std::string_view::npos;
  const char quote = has_single && !has_double ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const char32_t c = NextCharacter(text, &at);
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (c == ' ' || (u_isgraph(static_cast<UChar32>(c)) &&
                            u_charType(static_cast<UChar32>(c)) != U_PRIVATE_USE_CHAR &&
                            u_charType(static_cast<UChar32>(c)) != U_FORMAT_CHAR)) {
      out += text.substr(begin, at - begin);
    } else {
      out += Escaped(c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
  }
  return out + quote;
}

std::string JsonText(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      case '\b':
        out += "\\b";
        break;
      case '\f':
        out += "\\f";
        break;
      default:
        if (static_cast<uint8_t>(c) < 0x20) {
          out += Escaped("\\u%04x", static_cast<uint8_t>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

}  // namespace lorad::storage::jinja
