// Where models may lie: an operator names roots, and nothing outside of them is read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace lorad::server {

// `path` with every link followed. It and everything directly in it must lie beneath one of `roots`
// (with links followed there too). NOT_FOUND (MODEL_NOT_FOUND); PERMISSION_DENIED
// (OUTSIDE_MODEL_ROOT) names what leads out.
absl::StatusOr<std::string> ResolveModelPath(const std::string& path,
                                             const std::vector<std::string>& roots);

}  // namespace lorad::server
