#pragma once

#include <arrow/type_fwd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::client {

// How values of an Arrow type are written in JSON: as Python's json.dumps writes what pyarrow makes
// of them, where keys of a struct that have no value are left out. Threads: any.
class JsonForm {
 public:
  // Of the column of that name. INVALID_ARGUMENT: JSON has no such values, and the way to mend it.
  static absl::StatusOr<JsonForm> Of(const std::string& column, const arrow::DataType& type);

  // Appends value `i`, or null, to `out`, which is the text of its row so far. REQUIRES: `array` is
  // of the form's type. INVALID_ARGUMENT: JSON has no such value ("is not UTF-8"), or it "makes the
  // row longer than 16 MiB", and no more of it is made; what was appended is of no use then.
  absl::Status Append(const arrow::Array& array, std::int64_t i, std::string& out) const;

 private:
  friend struct Writers;
  using Write = absl::Status (*)(const JsonForm& form, const arrow::Array& array, std::int64_t i,
                                 std::string& out);

  absl::Status AddChild(const std::string& column, const std::string& path,
                        const arrow::DataType& type);
  absl::Status Take(const std::string& column, const std::string& path,
                    const arrow::DataType& type);

  Write write_ = nullptr;           // of what is not null
  std::vector<std::string> keys_;   // of a struct's fields: "\"name\": "
  std::vector<JsonForm> children_;  // of a struct's fields, or one: of a list's items, say
};

// A finite number as Python's repr writes it.
void AppendFloat(double value, std::string& out);

}  // namespace lorad::client
