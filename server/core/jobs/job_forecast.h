// When a job starts and ends, as was foreseen (forecasts.cc). A plain value.
#pragma once

#include <cstdint>

#include "lorad/v1/jobs.pb.h"
#include "planner/cost/forecast_errors.h"

namespace lorad::server {

// Seconds are from its making.
struct JobForecast {
  int64_t made_us = 0;  // Moment::steady_us; 0: there is none
  int64_t made_wall_us = 0;
  bool started = false;  // it was in a group already: there is no start
  bool paced = false;    // and the pace of that was known
  double start_s = 0;
  planner::ForecastInterval start;
  double end_s = 0;
  planner::ForecastInterval end;

  explicit operator bool() const { return made_us > 0; }
};

// Whether who waits for the job should hear of `now` after he was told `told`: its start is further
// off from what he was told than a fifth of the time until then, and than some seconds.
bool IsNews(const JobForecast& told, const JobForecast& now);

// REQUIRES: there is one.
v1::Forecast ToProto(const JobForecast& forecast);

}  // namespace lorad::server
