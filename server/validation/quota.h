// Checks of a quota's label and limits.
#pragma once

#include <string>
#include <vector>

#include "lorad/v1/cluster.pb.h"
#include "server/errors/errors.h"

namespace lorad::server {

// The mistake of "team=math" or "team=*" ("" = none): a key and a value as jobs' labels have them.
std::string CheckQuotaLabel(const std::string& label);

// All mistakes of a quota that is to be set.
std::vector<FieldViolation> CheckQuota(const v1::Quota& quota);

}  // namespace lorad::server
