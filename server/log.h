// The log: lines on stderr, as text or as one JSON object a line.
#pragma once

#include <string>

namespace lorad::server {

enum class LogFormat { kText, kJson };

// REQUIRES: `level` is "trace", "debug", "info", "warning", "error" or "off".
void SetUpLog(LogFormat format, const std::string& level);

}  // namespace lorad::server
