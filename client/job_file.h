#pragma once

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/inputs/job_text.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// Reads a job as users write it: proto3 JSON, or the same in YAML or TOML
// (client/inputs/job_text.h), with the proto's names (camelCase is read too) or those that PEFT,
// TRL and transformers have for the same (client/inputs/job_names.h). All mistakes are found at
// once and named by field and line: names that no field has (with the nearest that one has), values
// of another type, fields that only the service sets, keys given twice. Values out of range are the
// service's to refuse. `file_name` is for the messages.
absl::StatusOr<lorad::v1::Job> ParseJob(absl::string_view text, absl::string_view file_name,
                                        JobFormat format = JobFormat::kJson);

}  // namespace lorad::client
