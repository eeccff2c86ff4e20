// What an adapter trains, in words.
#pragma once

#include <string>

#include "client/text/table.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// Names, or the expression in their place, and what is left out.
std::string TargetsText(const v1::AdapterConfig& adapter);

// Lines for all that a job says of its adapter.
void AddAdapter(const v1::AdapterConfig& adapter, Table& table);

// Lines for what an adapter_config.json says beside targets, one rank and one alpha: layers and
// patterns, those that are there; then its modules.
void AddPatterns(const v1::AdapterConfig& adapter, Table& table);

}  // namespace lorad::client
