#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace google::protobuf {
class Timestamp;
}

namespace lorad::client {

// A table of text on a terminal: columns as wide as their widest cell (width.h), numbers to the
// right. A table without rows prints its heads alone.
class Table {
 public:
  explicit Table(const std::vector<std::string>& heads);
  // Of one thing: a row for each of its fields, a name and a value; these begin all in one column,
  // and go on beneath where they are longer than fits.
  static Table OfFields() {
    Table table({"FIELD", "VALUE"});
    table.numbers_right_ = false;
    return table;
  }

  // REQUIRES: as many cells as heads.
  void Add(const std::vector<std::string>& cells);
  void Print(std::ostream& out) const;
  // Its lines in so many characters (0: any number); values below their names where there is no
  // room beside these. Of fields alone.
  void PrintFields(std::ostream& out, int columns) const;
  void PrintFit(std::ostream& out, int columns, const std::vector<int>& rank) const;
  // Its lines, the heads first, in `columns` characters (0: any number). Of the columns but the
  // last those that do not fit beside each other go, the one with the highest `rank` first; one of
  // words is cut instead where enough is left of it to read, and that of rank 0 stays, cut where it
  // must be. The last one is cut to what is left, and goes where that is too little to read; where
  // it has a rank, those of a higher one go before it is cut to less than some words. REQUIRES: a
  // rank for each column, or each but the last.
  std::vector<std::string> Fit(int columns, const std::vector<int>& rank) const;

 private:
  struct Column {
    std::size_t index = 0;
    std::size_t width = 0;
    bool right = false;  // it has numbers alone
  };
  struct Cell {
    std::uint32_t end = 0;  // in text_
    std::uint32_t width = 0;
  };
  std::vector<Column> Columns() const;
  std::vector<Column> FitColumns(int columns, const std::vector<int>& rank) const;
  std::size_t rows() const { return cells_.size() / columns_.size(); }
  absl::string_view TextOf(std::size_t row, std::size_t column) const;
  void AddLine(std::size_t row, const std::vector<Column>& columns, std::string& text) const;
  void PrintNarrow(std::ostream& out, std::size_t room) const;
  void PrintLines(std::ostream& out, const std::vector<Column>& columns) const;

  // All cells in one piece each, row by row, the heads first: a table may have ten thousand rows.
  std::string text_;
  std::vector<Cell> cells_;
  std::vector<Column> columns_;  // of all rows; `right` below the heads
  bool numbers_right_ = true;
};

// How values look in tables and lines. An unknown value is "-".
std::string BytesText(std::int64_t bytes);                      // "94.1 MiB"
std::string DurationText(double seconds);                       // "1h 02m", "3m 05s", "12s"
std::string LossText(double loss);                              // "1.4018"
std::string RateText(double learning_rate);                     // "2e-04"
std::string TimeText(const google::protobuf::Timestamp& time);  // "2026-01-31 12:00:05Z"
std::string CountText(double value);                            // "12", "3.5"
std::string PaceText(double tokens_per_second);                 // "12.5", "212"; of 0 "-"
std::string JoinText(const std::vector<std::string>& parts);    // "a, b", or "-"

}  // namespace lorad::client
