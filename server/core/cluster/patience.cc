#include "server/core/cluster/patience.h"

#include <algorithm>

namespace lorad::server {
namespace {

Patience Of(const CoreOptions& options, double expected_s) {
  // A month, so that no factor makes it more than a number holds.
  constexpr double kSecondsMax = 30.0 * 24 * 3600;
  const double floor_s = static_cast<double>(options.patience_floor_ms) / 1000;
  const double limit_s = std::clamp(options.patience * expected_s, floor_s, kSecondsMax);
  return {expected_s, static_cast<int64_t>(limit_s * 1e6)};
}

}  // namespace

Patience PatienceToForm(const CoreOptions& options, int64_t weights_bytes) {
  return Of(options, static_cast<double>(weights_bytes) / kSlowDiskBytesPerSecond);
}

Patience PatienceFor(const CoreOptions& options, const WindowWork& work,
                     const planner::TimeModel& measured, const planner::TimeModel& assumed) {
  const auto ms = [&](const planner::TimeModel& times) {
    return times.TrainMs(work.tokens, work.squared_lengths, work.microbatches);
  };
  return Of(options, std::max(ms(measured), ms(assumed)) / 1000);
}

}  // namespace lorad::server
