#pragma once

#include <string>

#include "absl/status/status.h"

namespace lorad::client {

// The file holds `text`, or what it held before. Errors: FILE_UNWRITABLE.
absl::Status WriteWhole(const std::string& file, const std::string& text);

}  // namespace lorad::client
