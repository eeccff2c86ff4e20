// What commands print on a terminal, and whether it fits.
#pragma once

#include <pty.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "client/text/width.h"

namespace lorad::client {

// Standard output is a terminal of so many columns while it lives.
class Terminal {
 public:
  explicit Terminal(unsigned short columns) : kept_(dup(STDOUT_FILENO)) {
    const winsize size = {.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    int terminal = -1;
    REQUIRE(openpty(&other_end_, &terminal, nullptr, nullptr, &size) == 0);
    std::fflush(stdout);
    dup2(terminal, STDOUT_FILENO);
    close(terminal);
  }
  ~Terminal() {
    dup2(kept_, STDOUT_FILENO);
    close(kept_);
    close(other_end_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

 private:
  const int kept_;
  int other_end_ = -1;
};

// The lines of the output that are wider.
inline std::vector<std::string> WiderThan(std::size_t columns, const std::string& out) {
  std::vector<std::string> lines;
  std::istringstream in(out);
  for (std::string line; std::getline(in, line);) {
    if (WidthOf(line) > columns) lines.push_back(line);
  }
  return lines;
}

}  // namespace lorad::client
