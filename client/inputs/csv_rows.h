#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/inputs/rows.h"

namespace lorad::client {

// A table of RFC 4180 with a header: every row an object of strings. Quotes count at the beginning
// of a field; empty lines are skipped; a byte order mark at the front is taken off. A row has as
// many fields as the header, valid UTF-8, no NUL, and at most 16 MiB.
class CsvRows final : public RowConverter {
 public:
  CsvRows(char separator, const Columns& columns, const std::string& file_name)
      : separator_(separator), columns_(columns), file_name_(file_name) {}

  absl::Status Take(absl::string_view bytes, std::string& out) override;
  absl::Status Finish(std::string& out) override;

 private:
  enum class In { kFieldStart, kPlain, kQuoted, kQuoteSeen };

  absl::Status TakeByte(char c, std::string& out);
  absl::Status EndField();
  absl::Status EndRow(std::string& out);
  absl::Status TakeHeader();
  absl::Status CheckSeparator() const;
  absl::Status Wrong(std::int64_t line, const std::string& what) const;

  const char separator_;
  const Columns columns_;
  const std::string file_name_;
  In in_ = In::kFieldStart;
  std::string mark_;  // the first bytes, until they are a byte order mark or not
  bool past_mark_ = false;
  bool carriage_return_ = false;  // stood just before
  std::string field_;
  std::vector<std::string> row_;
  std::size_t row_bytes_ = 0;
  std::vector<std::string> keys_;  // as JSON, with quotes and ": "
  std::int64_t rows_ = 0;
  std::int64_t line_ = 1;
  std::int64_t row_line_ = 1;    // where the row begins
  std::int64_t quote_line_ = 1;  // where the quoted field begins
};

}  // namespace lorad::client
