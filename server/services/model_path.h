// Where models may lie: an operator names roots, and nothing outside of them is read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::server {

// `path` with every link followed. It and everything directly in it must lie beneath one of `roots`
// (with links followed there too). NOT_FOUND (MODEL_NOT_FOUND) for all else, in the same words
// whatever lies there. INVALID_ARGUMENT (INVALID_FIELDS) where a link leads to a path that is not
// UTF-8.
absl::StatusOr<std::string> ResolveModelPath(const std::string& path,
                                             const std::vector<std::string>& roots);

}  // namespace lorad::server
