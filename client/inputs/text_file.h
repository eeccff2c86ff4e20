#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lorad::client {

// Far more than a job with all of its labels takes, a chat template, or the positions of any model.
constexpr std::size_t kTextBytesMax = 1 << 20;

// The text of a file; "-" is standard input, read to its end.
// Errors: FILE_UNREADABLE; FILE_TOO_LONG where it has more than kTextBytesMax bytes, which are read
// and no more.
absl::StatusOr<std::string> ReadText(const std::string& path);

}  // namespace lorad::client
