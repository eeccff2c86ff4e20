#include "client/text/table.h"

#include <google/protobuf/timestamp.pb.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/text/width.h"

namespace lorad::client {
namespace {

// Of a column that is cut.
constexpr std::size_t kLeastWidth = 12;
constexpr std::size_t kReadable = 36;  // some words of a sentence

constexpr std::size_t kWriteBytes = 1 << 16;  // what a pipe holds

bool IsNumber(const std::string& cell) {
  return !cell.empty() && (cell == "-" || (cell[0] >= '0' && cell[0] <= '9'));
}

// In lines of so many columns, broken at blanks where there are any. One line at least.
std::vector<std::string> Wrapped(std::string text, std::size_t columns) {
  std::vector<std::string> lines;
  while (WidthOf(text) > columns) {
    std::string line = CutToWidth(text, columns);
    const std::size_t blank = text[line.size()] == ' ' ? line.size() : line.rfind(' ');
    if (blank != std::string::npos && blank > 0) line.resize(blank);
    text.erase(0, line.size());
    text.erase(0, text.find_first_not_of(' '));
    lines.push_back(std::move(line));
  }
  lines.push_back(std::move(text));
  return lines;
}

}  // namespace

Table::Table(const std::vector<std::string>& heads) {
  columns_.resize(heads.size());
  for (std::size_t i = 0; i < heads.size(); ++i) columns_[i].index = i;
  Add(heads);
  for (Column& column : columns_) column.right = true;
}

void Table::Add(const std::vector<std::string>& cells) {
  assert(cells.size() == columns_.size());
  for (Column& column : columns_) {
    const std::string& cell = cells[column.index];
    text_ += cell;
    const std::size_t width = WidthOf(cell);
    cells_.push_back({static_cast<std::uint32_t>(text_.size()), static_cast<std::uint32_t>(width)});
    column.width = std::max(column.width, width);
    column.right = column.right && IsNumber(cell);
  }
}

std::vector<Table::Column> Table::Columns() const {
  std::vector<Column> columns = columns_;
  for (Column& column : columns) column.right = column.right && numbers_right_ && rows() > 1;
  return columns;
}

absl::string_view Table::TextOf(std::size_t row, std::size_t column) const {
  const std::size_t i = row * columns_.size() + column;
  const std::size_t begin = i == 0 ? 0 : cells_[i - 1].end;
  return absl::string_view(text_).substr(begin, cells_[i].end - begin);
}

void Table::AddLine(std::size_t row, const std::vector<Column>& columns, std::string& text) const {
  const std::size_t begin = text.size();
  for (const Column& column : columns) {
    if (&column != &columns.front()) text += "  ";
    const absl::string_view cell = TextOf(row, column.index);
    const std::size_t width = cells_[row * columns_.size() + column.index].width;
    if (width > column.width) {
      const std::string cut = CutToWidth(cell, column.width);
      text += cut;
      text.append(column.width - WidthOf(cut), ' ');
      continue;
    }
    if (column.right) text.append(column.width - width, ' ');
    text.append(cell.data(), cell.size());
    if (!column.right) text.append(column.width - width, ' ');
  }
  while (text.size() > begin && text.back() == ' ') text.pop_back();
}

std::vector<Table::Column> Table::FitColumns(int columns, const std::vector<int>& rank) const {
  std::vector<Column> shown = Columns();
  assert(rank.size() + 1 == shown.size() || rank.size() == shown.size());
  if (columns == 0) return shown;
  const auto room = static_cast<std::size_t>(columns);
  Column last = shown.back();
  shown.pop_back();
  const auto width = [&] {
    std::size_t sum = 2 * (shown.size() - 1);
    for (const Column& column : shown) sum += column.width;
    return sum;
  };
  // Those of a higher rank than that make room for so many characters more.
  const auto make_room = [&](int than, std::size_t more) {
    while (shown.size() > 1 && width() + more > room) {
      const auto least = std::ranges::max_element(
          shown, {}, [&](const Column& column) { return rank[column.index]; });
      if (rank[least->index] <= than) return;
      const std::size_t excess = width() + more - room;
      if (!least->right && least->width >= kLeastWidth + excess) {
        least->width -= excess;
      } else {
        shown.erase(least);
      }
    }
  };
  if (rank.size() > last.index) make_room(rank[last.index], 2 + std::min(last.width, kReadable));
  make_room(-1, 0);
  shown[0].width = std::min(shown[0].width, room);
  const std::size_t left = room - std::min(room, width());
  if (left >= 2 + std::min(last.width, kLeastWidth)) {
    last.width = std::min(last.width, left - 2);
    shown.push_back(last);
  }
  return shown;
}

std::vector<std::string> Table::Fit(int columns, const std::vector<int>& rank) const {
  const std::vector<Column> shown = FitColumns(columns, rank);
  std::vector<std::string> lines(rows());
  for (std::size_t row = 0; row < rows(); ++row) AddLine(row, shown, lines[row]);
  return lines;
}

void Table::PrintLines(std::ostream& out, const std::vector<Column>& columns) const {
  std::string text;
  for (std::size_t row = 0; row < rows(); ++row) {
    AddLine(row, columns, text);
    text += '\n';
    if (text.size() < kWriteBytes) continue;
    out << text;
    text.clear();
  }
  out << text;
}

void Table::Print(std::ostream& out) const { PrintLines(out, Columns()); }

void Table::PrintFit(std::ostream& out, int columns, const std::vector<int>& rank) const {
  PrintLines(out, FitColumns(columns, rank));
}

void Table::PrintFields(std::ostream& out, int columns) const {
  const std::size_t indent = Columns()[0].width + 2;
  const auto room = static_cast<std::size_t>(std::max(columns, 0));
  if (room == 0) return Print(out);
  if (room < indent + kLeastWidth) return PrintNarrow(out, room);
  for (std::size_t row = 0; row < rows(); ++row) {
    std::string name(TextOf(row, 0));
    for (const std::string& part : Wrapped(std::string(TextOf(row, 1)), room - indent)) {
      out << name;
      if (!part.empty()) out << std::string(indent - WidthOf(name), ' ') << part;
      out << '\n';
      name.clear();
    }
  }
}

// Each value below its name.
void Table::PrintNarrow(std::ostream& out, std::size_t room) const {
  const std::string indent(2, ' ');
  const std::size_t left = std::max(room, kLeastWidth) - indent.size();
  for (std::size_t row = 0; row < rows(); ++row) {
    out << CutToWidth(TextOf(row, 0), room) << '\n';
    for (const std::string& part : Wrapped(std::string(TextOf(row, 1)), left)) {
      out << (part.empty() ? "" : indent) << part << '\n';
    }
  }
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
  const std::time_t seconds = time.seconds();
  std::tm utc = {};
  std::array<char, 64> text = {};
  gmtime_r(&seconds, &utc);  // half the time of absl::FormatTime, for ten thousand rows
  return {text.data(), std::strftime(text.data(), text.size(), "%Y-%m-%d %H:%M:%SZ", &utc)};
}

std::string CountText(double value) {
  return value == std::floor(value) ? absl::StrFormat("%.0f", value)
                                    : absl::StrFormat("%.1f", value);
}

std::string PaceText(double tokens_per_second) {
  if (tokens_per_second >= 100) return absl::StrFormat("%.0f", tokens_per_second);
  return tokens_per_second > 0 ? CountText(tokens_per_second) : "-";
}

std::string JoinText(const std::vector<std::string>& parts) {
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

}  // namespace lorad::client
