#pragma once

// Python's string methods on UTF-8. Places and lengths count characters.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lorad::storage::jinja {

// str.isspace of one character: White_Space and U+001C to U+001F.
bool IsPythonSpace(char32_t character);

enum class Side { kLeft, kRight, kBoth };
// str.strip and its kin; without `characters`, of white space.
std::string_view Strip(std::string_view text, Side side,
                       std::optional<std::string_view> characters = std::nullopt);

std::string Upper(std::string_view text);
std::string Lower(std::string_view text);
std::string Capitalize(std::string_view text);  // the first character upper, the rest lower case
std::string Title(std::string_view text);       // str.title
std::string JinjaTitle(std::string_view text);  // the `title` filter

// str.split; without a separator, at white space. `max` < 0: no limit.
std::vector<std::string> Split(std::string_view text, std::optional<std::string_view> separator,
                               int64_t max);
std::vector<std::string> SplitLines(std::string_view text);

// At most `max` replacements, all if it is negative. Nothing if the result would be longer than
// `max_bytes`.
std::optional<std::string> ReplaceText(std::string_view text, std::string_view from,
                                       std::string_view to, int64_t max, size_t max_bytes);

std::vector<std::string> Characters(std::string_view text);

// repr(text).
std::string QuoteText(std::string_view text);
// json.dumps(text, ensure_ascii=False).
std::string JsonText(std::string_view text);

}  // namespace lorad::storage::jinja
