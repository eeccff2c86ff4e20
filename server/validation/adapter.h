// The adapter of a job: its defaults, and what it means on its base model. Pure.
#pragma once

#include <string>
#include <vector>

#include "lorad/v1/jobs.pb.h"
#include "server/validation/checker.h"
#include "server/validation/job.h"
#include "storage/adapters/peft.h"
#include "storage/adapters/peft_config.h"
#include "storage/models/model_description.h"

namespace lorad::server {

// The same in PEFT's words, and back (without dropout, base model, seed and what only one has).
storage::PeftConfig PeftConfigOf(const v1::AdapterConfig& adapter);
v1::AdapterConfig AdapterConfigOf(const storage::PeftConfig& config);

// Adds what `modules` are to `adapter->modules`. `layers`: of the model, whose all are told of as
// none; 0: it is not known.
void SetModules(const std::vector<storage::TargetModule>& modules, int layers,
                v1::AdapterConfig* adapter);

// The same of an adapter on this model, by the last names of its modules where it trains them in
// all layers with one rank and alpha, however its config says so.
v1::AdapterConfig PlainIfAlike(const storage::PeftConfig& config,
                               const storage::ModelDescription& description);

// Whether what it says can only be checked on the description of its base model.
bool NeedsDescription(const v1::AdapterConfig& adapter);

// Takes unset fields from peft_config, which is cleared, from init_from's adapter or from PEFT's
// defaults, and fills `modules`. Notes what is out of range, unknown or contradictory.
void CompleteAdapter(Checker& checker, const JobReferences& references, v1::AdapterConfig* adapter);

}  // namespace lorad::server
