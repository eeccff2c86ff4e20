#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lorad::client {

// What a file of rows is written in. kLines is passed on byte for byte where no column is renamed.
enum class RowFormat { kLines, kArray, kCsv, kTsv };

// A column's name in the file -> its name in the rows.
using Columns = std::map<std::string, std::string>;

// "prompt=question,completion=answer": the rows' name, then the file's. Errors: USAGE.
absl::StatusOr<Columns> ReadColumns(const std::string& text);

// Turns rows into JSON Lines, piece by piece, in memory that one row bounds. What it writes is what
// Python's json.dumps(row) writes of rows of strings; of JSON it keeps every
// byte of a row but line ends and the blanks beside them. Threads: one. Errors: BAD_ROWS_FILE, by
// line; after one it is of no use.
class RowConverter {
 public:
  virtual ~RowConverter() = default;
  // Appends what these bytes complete to `out`.
  virtual absl::Status Take(absl::string_view bytes, std::string& out) = 0;
  virtual absl::Status Finish(std::string& out) = 0;
};

// `file_name` is for the messages.
std::unique_ptr<RowConverter> MakeRowConverter(RowFormat format, const Columns& columns,
                                               const std::string& file_name);

}  // namespace lorad::client
