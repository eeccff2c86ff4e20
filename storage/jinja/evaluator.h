#pragma once

// Runs a parsed template.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/jinja/program.h"

namespace lorad::storage::jinja {

struct Limits {
  int64_t steps = 0;
  int64_t output_bytes = 0;
};

// The text that `program` prints with these variables. INVALID_ARGUMENT with reason
// TEMPLATE_REJECTED, TEMPLATE_FAILED or TEMPLATE_LIMIT.
absl::StatusOr<std::string> Run(const Program& program,
                                std::vector<std::pair<std::string, Value>> variables,
                                const Limits& limits);

}  // namespace lorad::storage::jinja
