#include "client/calls/transfer.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/text/table.h"
#include "client/text/width.h"

namespace lorad::client {
namespace {

constexpr int kColumnsMin = 20;
constexpr int kBarWidth = 24;
constexpr std::int64_t kBeginMs = 1000;  // what is over sooner is not drawn
constexpr std::int64_t kDrawEveryMs = 200;

std::int64_t NowMs() {
  return std::chrono::duration_cast<std::chrono::milliseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int ErrorColumns() {
  winsize window{};
  if (ioctl(STDERR_FILENO, TIOCGWINSZ, &window) != 0) return 0;
  return window.ws_col;
}

// A part of the line. Of those that do not fit the one of the highest rank goes first.
struct Part {
  std::string text;
  int rank = 0;
};

}  // namespace

std::string TransferLine(const std::string& what, const Transferred& so_far, int columns) {
  if (columns < kColumnsMin) return "";
  const double speed =
      so_far.seconds > 0 ? static_cast<double>(so_far.bytes - so_far.before) / so_far.seconds : 0;
  std::array<Part, 6> parts;
  parts[0] = {what, 4};
  if (so_far.total > 0) {
    const double share =
        std::clamp(static_cast<double>(so_far.bytes) / static_cast<double>(so_far.total), 0.0, 1.0);
    const auto full = static_cast<std::size_t>(share * kBarWidth);
    parts[1] = {absl::StrCat("[", std::string(full, '#'), std::string(kBarWidth - full, ' '), "]"),
                5};
    parts[2] = {absl::StrFormat("%3.0f%%", 100 * share), 0};
    parts[3] = {absl::StrCat(BytesText(so_far.bytes), " of ", BytesText(so_far.total)), 3};
    if (speed > 0) {
      const double left = static_cast<double>(so_far.total - so_far.bytes) / speed;
      parts[5] = {absl::StrCat(DurationText(left), " left"), 1};
    }
  } else {
    parts[3] = {BytesText(so_far.bytes), 0};
    parts[5] = {DurationText(so_far.seconds), 3};
  }
  parts[4] = {absl::StrCat(BytesText(static_cast<std::int64_t>(speed)), "/s"), 2};
  const auto room = static_cast<std::size_t>(columns) - 1;  // a full line would wrap
  while (true) {
    std::string line;
    Part* last = &parts[0];
    for (Part& part : parts) {
      if (part.text.empty()) continue;
      absl::StrAppend(&line, line.empty() ? "" : "  ", part.text);
      if (last->text.empty() || part.rank > last->rank) last = &part;
    }
    if (WidthOf(line) <= room) return line;
    if (last->rank == 0) return CutToWidth(line, room);
    last->text.clear();
  }
}

TransferBar::TransferBar(bool wanted, std::string what, std::int64_t total)
    : shown_(wanted && isatty(STDERR_FILENO) != 0), what_(std::move(what)), begin_ms_(NowMs()) {
  so_far_.total = total;
}

void TransferBar::SetTotal(std::int64_t total) {
  std::lock_guard lock(mutex_);
  so_far_.total = total;
}

void TransferBar::End() {
  std::lock_guard lock(mutex_);
  if (std::exchange(drawn_ms_, 0) > 0) std::cerr << "\r\x1b[K" << std::flush;
}

void TransferBar::Add(std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  so_far_.bytes += bytes;
  Draw();
}

void TransferBar::Skip(std::int64_t bytes) {
  std::lock_guard lock(mutex_);
  so_far_.bytes += bytes;
  so_far_.before += bytes;
}

void TransferBar::Draw() {
  if (!shown_) return;
  const std::int64_t now_ms = NowMs();
  if (now_ms - begin_ms_ < kBeginMs || now_ms - drawn_ms_ < kDrawEveryMs) return;
  so_far_.seconds = static_cast<double>(now_ms - begin_ms_) / 1000;
  const std::string line = TransferLine(what_, so_far_, ErrorColumns());
  if (line.empty()) return;
  drawn_ms_ = now_ms;
  std::cerr << "\r" << line << "\x1b[K" << std::flush;
}

}  // namespace lorad::client
