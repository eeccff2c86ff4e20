// The data directory belongs to the daemon's user alone.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::server {

// PERMISSION_DENIED (DATA_DIR_NOT_OURS) where the directory is there and is not this user's.
absl::Status CheckOwner(const std::string& directory, uid_t user);

// Takes what others may do from the data directory (then 0700), its folders, and the files that lie
// in itself (0600). Returns the paths that this has changed.
absl::StatusOr<std::vector<std::string>> MakePrivate(const std::string& directory);

}  // namespace lorad::server
