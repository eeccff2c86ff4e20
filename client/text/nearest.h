#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace lorad::client {

// The candidate that is fewest letters away (inserted, left out or exchanged), the first of
// several; "" where more than a third of the name's letters differ, and more than 2. Threads: safe
// from any.
std::string Nearest(absl::string_view name, const std::vector<std::string>& candidates);

// Letters to insert, leave out or exchange until one is the other.
std::size_t EditDistance(absl::string_view a, absl::string_view b);

}  // namespace lorad::client
