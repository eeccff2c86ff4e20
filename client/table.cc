#include "client/table.h"

#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdio>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"

namespace lorad::client {
namespace {

// Characters, not bytes: a column of UTF-8 names stays straight.
std::size_t Width(const std::string& text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; });
}

bool IsNumber(const std::string& cell) {
  return !cell.empty() && (cell == "-" || (cell[0] >= '0' && cell[0] <= '9'));
}

}  // namespace

void Table::Add(std::vector<std::string> cells) {
  assert(cells.size() == rows_[0].size());
  rows_.push_back(std::move(cells));
}

void Table::Print(std::ostream& out) const {
  const std::size_t columns = rows_[0].size();
  std::vector<std::size_t> width(columns, 0);
  std::vector<bool> right(columns, rows_.size() > 1);
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    for (std::size_t i = 0; i < columns; ++i) {
      width[i] = std::max(width[i], Width(rows_[row][i]));
      if (row > 0 && !IsNumber(rows_[row][i])) right[i] = false;
    }
  }
  std::string text;
  for (const auto& row : rows_) {
    for (std::size_t i = 0; i < columns; ++i) {
      const std::size_t space = width[i] - Width(row[i]);
      if (i > 0) text += "  ";
      if (right[i]) text.append(space, ' ');
      text += row[i];
      if (!right[i]) text.append(space, ' ');
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += '\n';
  }
  out << text;
}

std::string BytesText(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return unit == 0 ? absl::StrFormat("%d B", bytes)
                   : absl::StrFormat("%.1f %s", value, kUnits[unit]);
}

std::string DurationText(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  if (whole < 60) return absl::StrFormat("%ds", whole);
  if (whole < 3600) return absl::StrFormat("%dm %02ds", whole / 60, whole % 60);
  return absl::StrFormat("%dh %02dm", whole / 3600, whole / 60 % 60);
}

std::string LossText(double loss) { return absl::StrFormat("%.4f", loss); }

std::string RateText(double learning_rate) { return absl::StrFormat("%.3g", learning_rate); }

std::string TimeText(const google::protobuf::Timestamp& time) {
  if (time.seconds() == 0) return "-";
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixSeconds(time.seconds()),
                          absl::UTCTimeZone());
}

std::string CountText(double value) {
  return value == std::floor(value) ? absl::StrFormat("%.0f", value)
                                    : absl::StrFormat("%.1f", value);
}

std::string JoinText(const std::vector<std::string>& parts) {
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

}  // namespace lorad::client
