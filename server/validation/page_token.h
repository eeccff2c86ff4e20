// Page tokens: where the next page of a list begins, as text that clients pass back unread.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lorad::server {

// `scope` is what the token belongs to: the method and whatever else of the request shapes the list
// (its filter).
std::string MakePageToken(const std::string& scope, const std::string& cursor);

// The cursor of a token made for the same scope; "" for an empty token (the first page).
// INVALID_ARGUMENT (INVALID_FIELDS, field "page_token") for any other text.
absl::StatusOr<std::string> ReadPageToken(const std::string& scope, const std::string& token);

}  // namespace lorad::server
