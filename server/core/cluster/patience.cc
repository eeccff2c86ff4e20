#include "server/core/cluster/patience.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"

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

Patience PatienceToSave(const CoreOptions& options, int64_t bytes) {
  return Of(options, static_cast<double>(bytes) / kSlowNetworkBytesPerSecond);
}

Patience PatienceFor(const CoreOptions& options, const WindowWork& work,
                     const planner::TimeModel& measured, double slowness,
                     const planner::TimeModel& assumed) {
  const auto ms = [&](const planner::TimeModel& times) {
    return times.TrainMs(work.sum, work.microbatches);
  };
  return Of(options, std::max(slowness * ms(measured), ms(assumed)) / 1000);
}

std::string WhyImpatient(const std::optional<Asked>& asked, int64_t quiet_us) {
  if (!asked || quiet_us <= asked->patience.limit_us) return "";
  return absl::StrCat(asked->what, " for ", quiet_us / 1'000'000, " s; expected were ",
                      std::ceil(asked->patience.expected_s), " s (--patience, --patience-floor)");
}

bool IsOverdue(const CoreOptions& options, const std::optional<Asked>& asked, int64_t quiet_us) {
  if (!asked) return false;
  const double lease_s = static_cast<double>(options.lease_ms) / 1000;
  return static_cast<double>(quiet_us) / 1e6 > asked->patience.expected_s + lease_s;
}

}  // namespace lorad::server
