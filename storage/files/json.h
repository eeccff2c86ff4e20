#pragma once

// JSON that others wrote, as a tree that is safe to walk, print and compare.

#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::storage {

// nlohmann prints, copies and compares by recursion: without a limit a file of a megabyte of '['
// would use up the stack. Configs nest 5 deep, tokenizers 9.
inline constexpr int kJsonDepthMax = 64;

// Parses one JSON text. InvalidArgument with `reason` says line and column of a mistake, or that
// the text nests deeper than kJsonDepthMax.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view reason);

}  // namespace lorad::storage
