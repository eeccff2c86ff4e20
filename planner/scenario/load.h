// The load of a scenario, from which a history's jobs are drawn.
#pragma once

#include <map>
#include <string>

#include "planner/replay/load.h"
#include "planner/scenario/cluster_fields.h"
#include "planner/scenario/fields.h"

namespace lorad::planner::scenario {

// "load"; base models are those of `models`, and alone_s goes by their times on the device.
Load ReadLoad(Fields fields, const Models& models, const std::string& device,
              const std::map<DeviceKey, TimeCoefficients>& times);

}  // namespace lorad::planner::scenario
