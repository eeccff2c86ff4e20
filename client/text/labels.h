#pragma once

#include <string>
#include <utility>
#include <vector>

#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// "team=math" as its key and its value; the key ends at the first '='. REQUIRES: CheckLabel.
std::pair<std::string, std::string> SplitLabel(const std::string& text);

// The mistake of a KEY=VALUE of the command line, as CLI::Option::check wants it; "" = none.
std::string CheckLabel(const std::string& text);

// "run=7, team=math", by key; "-" where there is none.
std::string LabelsText(const lorad::v1::Job& job);

}  // namespace lorad::client
