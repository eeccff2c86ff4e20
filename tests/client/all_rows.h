// What a source of rows gives, as text.
#pragma once

#include <memory>
#include <sstream>
#include <string>

#include "absl/status/statusor.h"
#include "client/calls/error.h"
#include "client/inputs/row_source.h"

namespace lorad::client {

// As `lora` prints it.
inline std::string ErrorText(const absl::Status& status) {
  std::ostringstream out;
  PrintError(status, out);
  return out.str();
}

// All rows; an error's text where it fails.
inline std::string AllRows(const absl::StatusOr<std::unique_ptr<RowSource>>& source) {
  if (!source.ok()) return ErrorText(source.status());
  std::string all;
  while (true) {
    const auto bytes = (*source)->Next();
    if (!bytes.ok()) return ErrorText(bytes.status());
    if (bytes->empty()) return all;
    all += *bytes;
  }
}

}  // namespace lorad::client
