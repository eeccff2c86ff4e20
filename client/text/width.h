// How wide text is on a terminal: letters of Chinese, Japanese and Korean and most emoji take two
// columns, what combines with the letter before it none. Threads: safe from any.
#pragma once

#include <cstddef>
#include <string>

#include "absl/strings/string_view.h"

namespace lorad::client {

// In columns. A byte that is no UTF-8 counts one; a control character as well.
std::size_t WidthOf(absl::string_view text);

// Its first whole characters, of no more than so many columns.
std::string CutToWidth(absl::string_view text, std::size_t columns);

struct TerminalSize {
  int rows = 0;
  int columns = 0;

  bool operator==(const TerminalSize&) const = default;
};

// Of the terminal on standard output; 0 and 0: it is none.
TerminalSize SizeOfTerminal();
// Its columns.
int TerminalColumns();

// Whether standard output is a terminal on which a program may draw over what stands there: none
// that TERM calls dumb, or says nothing of.
bool CanDrawOver();

// Whether the user's locale (LC_ALL, LC_CTYPE, LANG) writes UTF-8.
bool WritesUtf8();

}  // namespace lorad::client
