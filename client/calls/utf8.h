#pragma once

#include <cstddef>
#include <string_view>

#include "absl/status/status.h"

namespace lorad::client {

// How many of the first bytes are whole characters of UTF-8 (RFC 3629); all of them: it is text.
std::size_t TextBytes(std::string_view text);

// INVALID_ARGUMENT where `what` ("the prompt") is no UTF-8, with the first byte that is to blame,
// counted from 0.
absl::Status CheckText(std::string_view what, std::string_view text);

}  // namespace lorad::client
