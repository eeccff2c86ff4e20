// What lies in a data directory and no record names.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/data_dir.h"
#include "storage/files.h"

namespace lorad::server {

// Puts away what no record names: what was on its way in, being written or being removed before a
// crash is removed; what is whole moves to lost/, for a record may have named it in a store that is
// newer than this one. `in_use`: paths below the data directory. Returns lines for the log.
absl::StatusOr<std::vector<std::string>> ClearLeftovers(const DataDir& data_dir,
                                                        storage::Files& files,
                                                        const std::vector<std::string>& in_use);

}  // namespace lorad::server
