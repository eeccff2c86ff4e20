// When a job starts and ends, as tables show it.
#pragma once

#include <string>

#include "client/text/table.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::client {

// "in 3m 10s (1m 40s to 6m 2s), 2026-11-24 10:13:05": counted from the forecast's making.
std::string StartText(const lorad::v1::Forecast& forecast);
std::string EndText(const lorad::v1::Forecast& forecast);

// "2026-11-24 10:13:05 (2026-11-24 10:11:00 to 2026-11-24 10:16:30)": to compare with what
// came of it.
std::string ForetoldStartText(const lorad::v1::Forecast& forecast);
std::string ForetoldEndText(const lorad::v1::Forecast& forecast);

// Rows "starts" (not of a job that is in a group) and "ends".
void AddForecast(const lorad::v1::Forecast& forecast, Table& table);

}  // namespace lorad::client
