// Paths that must not lead out of a folder.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace lorad::server {

// Whether `path` (relative, or below `root` as text) is there beneath the folder `root`, as the
// kernel resolves it (openat2): links are followed as long as they stay beneath it, and so do "..".
// NOT_FOUND for whatever is not there, cannot be read, or leads out: nobody learns of what lies
// elsewhere.
absl::Status CheckBeneath(const std::string& root, const std::string& path);

// Whether this process may ask the kernel that at all: else OPENAT2_UNAVAILABLE, with a remedy.
// Then every CheckBeneath would say NOT_FOUND.
absl::Status CheckOpenat2();

}  // namespace lorad::server
