// A job as its client says it, checked whole and completed. Pure: what it refers to is looked up by
// the caller.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lorad/v1/jobs.pb.h"
#include "server/errors/errors.h"
#include "storage/models/model_description.h"

namespace lorad::server {

// The limits that a base model sets to a job's fields.
struct ModelLimits {
  std::string architecture;
  std::vector<std::string> target_modules;
  int max_positions = 0;
};

// The things that the names in a job stand for. `known` false = there is no such thing; then the
// field is a violation.
struct JobReferences {
  bool model_known = false;
  ModelLimits model;
  bool training_dataset_known = false;
  bool validation_dataset_known = false;  // looked at if the job names one
  bool source_known = false;              // of adapter.init_from; looked at if the job has one
  v1::AdapterConfig source;               // what a PEFT config says of it (AdapterConfigOf)
  // Of the model; needed by what NeedsDescription (validation/adapter.h) and by such a source.
  std::optional<storage::ModelDescription> description;
};

// Fills `job`'s unset fields with their defaults, drops what only the service says, sorts nothing,
// and returns every field that is out of range, missing or unknown, in the order of the proto's
// fields. Numbers that are not finite are out of range. target_modules keep the order in which they
// were given.
std::vector<FieldViolation> CompleteJob(v1::Job& job, const JobReferences& references);

// The mistakes of an update: of its mask, and of the values that it names. Whether there is such a
// job is for the core.
std::vector<FieldViolation> CheckUpdate(const v1::UpdateJobRequest& request);

}  // namespace lorad::server
