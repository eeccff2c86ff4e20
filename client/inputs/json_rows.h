#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "client/inputs/rows.h"

namespace lorad::client {

// A JSON array of objects, or JSON Lines whose columns are renamed. It looks at brackets, strings
// and the keys of a row alone: whether a row is JSON the service judges, by the row's number. Line
// ends in a row, with the blanks beside them, become one blank behind a comma and nothing
// elsewhere.
class JsonRows final : public RowConverter {
 public:
  JsonRows(bool array, const Columns& columns, const std::string& file_name)
      : array_(array), columns_(columns), file_name_(file_name) {}

  absl::Status Take(absl::string_view bytes, std::string& out) override;
  absl::Status Finish(std::string& out) override;

 private:
  enum class At { kBegin, kRowOrEnd, kRow, kIn, kCommaOrEnd, kEnd };

  absl::Status TakeByte(char c, std::string& out);
  absl::Status TakeInRow(char c);
  absl::Status EndRow(std::string& out);
  void TakeKey();
  absl::Status Wrong(const std::string& what) const;

  const bool array_;
  const Columns columns_;
  const std::string file_name_;
  At at_ = At::kBegin;
  std::string mark_;  // the first bytes, until they are a byte order mark or not
  bool past_mark_ = false;
  std::string row_;
  std::string blanks_;  // not yet written: a line end may follow
  int depth_ = 0;       // of brackets in the row
  bool in_string_ = false;
  bool escaped_ = false;
  bool key_next_ = false;         // a string here is a key of the row
  std::size_t string_begin_ = 0;  // in row_
  std::set<std::string> renamed_;
  std::int64_t rows_ = 0;
  std::int64_t line_ = 1;
};

}  // namespace lorad::client
