#include "client/text/width.h"

#include <locale.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "absl/strings/ascii.h"

namespace lorad::client {
namespace {

struct Character {
  std::size_t bytes = 1;
  std::size_t columns = 1;
};

// The C library's table, whatever the user's locale is; that of the thread comes back at the end.
class Utf8Locale {
 public:
  Utf8Locale() {
    static const locale_t utf8 = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
    if (utf8 != nullptr) before_ = uselocale(utf8);
  }
  ~Utf8Locale() {
    if (before_ != nullptr) uselocale(before_);
  }
  Utf8Locale(const Utf8Locale&) = delete;
  Utf8Locale& operator=(const Utf8Locale&) = delete;

 private:
  locale_t before_ = nullptr;
};

// REQUIRES: text is not empty.
Character First(absl::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t bytes = byte(0) < 0x80             ? 1
                            : (byte(0) & 0xe0) == 0xc0 ? 2
                            : (byte(0) & 0xf0) == 0xe0 ? 3
                            : (byte(0) & 0xf8) == 0xf0 ? 4
                                                       : 0;
  if (bytes < 2 || bytes > text.size()) return {};
  uint32_t code = byte(0) & (0xffu >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return {};
    code = code << 6 | (byte(i) & 0x3fu);
  }
  const int columns = wcwidth(static_cast<wchar_t>(code));
  return {bytes, columns < 0 ? 1u : static_cast<std::size_t>(columns)};
}

// One column a byte: most text by far, and a table has a hundred thousand cells.
bool IsPrintableAscii(absl::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c >= ' ' && c <= '~'; });
}

}  // namespace

std::size_t WidthOf(absl::string_view text) {
  if (IsPrintableAscii(text)) return text.size();
  const Utf8Locale locale;
  std::size_t width = 0;
  while (!text.empty()) {
    const Character character = First(text);
    width += character.columns;
    text.remove_prefix(character.bytes);
  }
  return width;
}

std::string CutToWidth(absl::string_view text, std::size_t columns) {
  if (IsPrintableAscii(text)) return std::string(text.substr(0, columns));
  const Utf8Locale locale;
  std::size_t width = 0, bytes = 0;
  while (bytes < text.size()) {
    const Character character = First(text.substr(bytes));
    if (width + character.columns > columns) break;
    width += character.columns;
    bytes += character.bytes;
  }
  return std::string(text.substr(0, bytes));
}

bool WritesUtf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = getenv(name);
    if (value == nullptr || *value == '\0') continue;  // the first that is set counts
    const std::string text = absl::AsciiStrToLower(value);
    return text.find("utf-8") != std::string::npos || text.find("utf8") != std::string::npos;
  }
  return false;
}

bool CanDrawOver() {
  const char* const kind = std::getenv("TERM");
  return isatty(STDOUT_FILENO) != 0 && kind != nullptr && *kind != '\0' &&
         std::string_view(kind) != "dumb";
}

TerminalSize SizeOfTerminal() {
  winsize window{};
  if (isatty(STDOUT_FILENO) == 0 || ioctl(STDOUT_FILENO, TIOCGWINSZ, &window) != 0) return {};
  return {window.ws_row, window.ws_col};
}

int TerminalColumns() { return SizeOfTerminal().columns; }

}  // namespace lorad::client
