#pragma once

#include <string>

#include "absl/status/status.h"

namespace lorad::client {

// The file holds `text`, or what it held before: it is written beside it as FILE.partial and put in
// its place, with the same mode. A symbolic link stays, and what it leads to is written so. What is
// no regular file, a device or a pipe, is written into as it stands, and waited for as it wants; so
// is /dev/stdout, whatever it leads to.
// Errors: FILE_UNWRITABLE, also where it is a folder.
absl::Status WriteWhole(const std::string& file, const std::string& text);

// Why no file can be at that path, for options that name one; "" where one may be.
std::string CheckFile(const std::string& file);

}  // namespace lorad::client
