#pragma once

// Runs a parsed template.

#include <cstddef>
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

using Variables = std::vector<std::pair<std::string, Value>>;

struct Printed {
  std::string text;
  // Bytes [first, second) that stood between {% generation %} and {% endgeneration %}, in order. As
  // in transformers a mark inside of a macro or a set block counts from where the text had come to.
  std::vector<std::pair<size_t, size_t>> generated;
};

// What `program` prints with these variables. INVALID_ARGUMENT with reason TEMPLATE_REJECTED,
// TEMPLATE_FAILED or TEMPLATE_LIMIT.
absl::StatusOr<Printed> Run(const Program& program, Variables variables, const Limits& limits);

}  // namespace lorad::storage::jinja
