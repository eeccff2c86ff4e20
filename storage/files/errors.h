#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lorad::storage {

// Where a Status keeps its machine-readable reason (UPPER_SNAKE_CASE), for google.rpc.ErrorInfo.
inline constexpr std::string_view kReasonPayload = "lorad/reason";

// Debian's abseil has a string_view of its own.
inline absl::string_view Absl(std::string_view text) { return {text.data(), text.size()}; }

// An error with its reason.
absl::Status WithReason(absl::StatusCode code, std::string_view reason, std::string_view message);
// An error's reason; "" if it has none.
std::string ReasonOf(const absl::Status& status);

// A file of the user's that we cannot accept: INVALID_ARGUMENT with a reason. `message` says what
// is wrong, where, and how to mend it.
absl::Status Refuse(std::string_view reason, std::string_view message);

// The same status with "`where`: " before its message; code and payloads stay.
absl::Status At(std::string_view where, const absl::Status& status);

// "; did you mean q_proj?" for the one of `known` that is nearest to `word`; "" if none is near.
std::string DidYouMean(std::string_view word, const std::vector<std::string>& known);

// `text` in quotes for a message: cut after 200 bytes, control characters and quotes escaped.
std::string Quoted(std::string_view text);

}  // namespace lorad::storage
