#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/inputs/job_text.h"

// The reader of each format, for ReadJobText alone (client/inputs/job_text.h has the contract).
// Errors are INVALID_ARGUMENT with a message that lacks the file's name.
namespace lorad::client {

absl::StatusOr<JobText> ReadJobJson(absl::string_view text);
absl::StatusOr<JobText> ReadJobYaml(absl::string_view text);
absl::StatusOr<JobText> ReadJobToml(absl::string_view text);

// "line 3, column 5", both counted from 1.
std::string PlaceText(std::size_t line, std::size_t column);
// "training" and "max_steps" are "training.max_steps"; "" is the job itself.
std::string FieldPath(const std::string& section, absl::string_view name);
// "nested deeper than 16 levels"
std::string TooDeepText();

}  // namespace lorad::client
