#pragma once

#include <functional>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace lorad::client {

// A name by which PEFT, TRL or transformers call a field of a job. Threads: all of this file is
// safe from any.
struct JobName {
  absl::string_view section;  // "adapter", "training", or "" for the job itself
  absl::string_view name;     // theirs
  absl::string_view field;    // ours, in the same section
};

// The one table of such names; docs/api.md has a row for each.
absl::Span<const JobName> JobNames();

// Names by which others call a field, not taken as such: who writes one is told what is likely
// meant.
absl::Span<const JobName> LikelyNames();

// A mistake: the path as the user wrote it ("adapter.r"), and what is wrong.
using NoteMistake = std::function<void(const std::string& path, const std::string& what)>;

// Exchanges, in one section of a job file, their names and their values ("cosine") for ours.
// Answers with the field's path -> the path that the user wrote, of what was exchanged. Two names
// that say different things, and values that have no equal here, are mistakes. Names that say what
// is done anyway (needless_names.h) are taken out.
//   batch_size = per_device_train_batch_size x gradient_accumulation_steps
//   eval_every_steps = logging_steps, where evaluations come by steps and it is not said otherwise
std::map<std::string, std::string> TakeNames(absl::string_view section, nlohmann::json& object,
                                             const NoteMistake& note);

}  // namespace lorad::client
