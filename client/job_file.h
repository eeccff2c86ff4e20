#pragma once

#include <set>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/inputs/job_text.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// Fields of TrainingConfig that count steps ("eval_every_steps") and are "epoch" in a job file: the
// steps of an epoch, which the daemon counts. They are not set in the job.
using EpochFields = std::set<std::string>;

// Reads a job as users write it: proto3 JSON, or the same in YAML or TOML
// (client/inputs/job_text.h), with the proto's names (camelCase is read too) or those that PEFT,
// TRL and transformers have for the same (client/inputs/job_names.h). All mistakes are found at
// once and named by field and line: names that no field has (with the nearest that one has), values
// of another type, fields that only the service sets, keys given twice. Values out of range are the
// service's to refuse. `file_name` is for the messages. A job as `lora show --json` prints it (it
// has state, etag and create_time) is read as InputOf has it. Without `by_epoch` no field may be
// "epoch".
absl::StatusOr<lorad::v1::Job> ParseJob(absl::string_view text, absl::string_view file_name,
                                        JobFormat format = JobFormat::kJson,
                                        EpochFields* by_epoch = nullptr);

// What the client said of a job: without the fields that only the service sets.
lorad::v1::Job InputOf(lorad::v1::Job job);

// Sets fields of the job by "FIELD=VALUE", as in training.learning_rate=1e-3: by path, with the
// names that job files have, the last one where one is given twice. A value is text where the field
// is text, and JSON elsewhere. Lists, and null (the service's default), replace what the job has;
// keys of maps (labels.team=math) are added. Errors: USAGE where it is no such pair; BAD_JOB_FILE
// with all mistakes by field, and the job is then of no use. What is set is in `by_epoch` if it is
// "epoch", and only then.
absl::Status SetFields(const std::vector<std::string>& settings, lorad::v1::Job& job,
                       EpochFields* by_epoch = nullptr);

}  // namespace lorad::client
