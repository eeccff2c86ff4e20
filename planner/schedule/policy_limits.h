// What the settings of the policy (SchedulePolicy, view.h) may be, from 0 on: as options of `lorad
// serve` and in the files of lorad-plan alike.
#pragma once

#include <cstdint>

namespace lorad::planner {

inline constexpr int64_t kMinimumRunMaxS = int64_t{30} * 24 * 3600;
inline constexpr double kPointsPerHourMax = 3600;  // one a second
inline constexpr double kPointsMax = 1e6;
inline constexpr double kLeastGainMax = 1;  // twice the tokens a second

}  // namespace lorad::planner
