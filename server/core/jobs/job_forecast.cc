#include "server/core/jobs/job_forecast.h"

#include <algorithm>
#include <cmath>

#include "server/core/events/turn.h"

namespace lorad::server {
namespace {

constexpr double kNewsShare = 0.2;
constexpr double kNewsSeconds = 5;

double Seconds(int64_t us) { return static_cast<double>(us) / 1e6; }

}  // namespace

bool IsNews(const JobForecast& told, const JobForecast& now) {
  if (!told || !now) return static_cast<bool>(told) != static_cast<bool>(now);
  const double age_s = Seconds(now.made_us - told.made_us);
  const double moved_s = std::abs(age_s + now.start_s - told.start_s);
  return moved_s > std::max(kNewsShare * now.start_s, kNewsSeconds);
}

v1::Forecast ToProto(const JobForecast& forecast) {
  v1::Forecast proto;
  const auto stamp = [&](double seconds, google::protobuf::Timestamp* time) {
    Turn::StampWall(forecast.made_wall_us + static_cast<int64_t>(seconds * 1e6), time);
  };
  stamp(0, proto.mutable_make_time());
  if (!forecast.started) {
    stamp(forecast.start_s, proto.mutable_start_time());
    stamp(forecast.start.earliest_s, proto.mutable_start_earliest());
    stamp(forecast.start.latest_s, proto.mutable_start_latest());
  }
  stamp(forecast.end_s, proto.mutable_end_time());
  stamp(forecast.end.earliest_s, proto.mutable_end_earliest());
  stamp(forecast.end.latest_s, proto.mutable_end_latest());
  return proto;
}

}  // namespace lorad::server
