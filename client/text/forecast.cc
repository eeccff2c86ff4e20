#include "client/text/forecast.h"

#include "absl/strings/str_cat.h"

namespace lorad::client {
namespace {

using google::protobuf::Timestamp;

std::string MomentText(const Timestamp& made, const Timestamp& time, const Timestamp& earliest,
                       const Timestamp& latest) {
  const auto from_made = [&](const Timestamp& moment) {
    return DurationText(static_cast<double>(moment.seconds() - made.seconds()) +
                        1e-9 * static_cast<double>(moment.nanos() - made.nanos()));
  };
  return absl::StrCat("in ", from_made(time), " (", from_made(earliest), " to ", from_made(latest),
                      "), ", TimeText(time));
}

std::string ForetoldText(const Timestamp& time, const Timestamp& earliest,
                         const Timestamp& latest) {
  return absl::StrCat(TimeText(time), " (", TimeText(earliest), " to ", TimeText(latest), ")");
}

}  // namespace

std::string StartText(const lorad::v1::Forecast& forecast) {
  return MomentText(forecast.make_time(), forecast.start_time(), forecast.start_earliest(),
                    forecast.start_latest());
}

std::string EndText(const lorad::v1::Forecast& forecast) {
  return MomentText(forecast.make_time(), forecast.end_time(), forecast.end_earliest(),
                    forecast.end_latest());
}

std::string ForetoldStartText(const lorad::v1::Forecast& forecast) {
  return ForetoldText(forecast.start_time(), forecast.start_earliest(), forecast.start_latest());
}

std::string ForetoldEndText(const lorad::v1::Forecast& forecast) {
  return ForetoldText(forecast.end_time(), forecast.end_earliest(), forecast.end_latest());
}

void AddForecast(const lorad::v1::Forecast& forecast, Table& table) {
  if (forecast.has_start_time()) table.Add({"starts", StartText(forecast)});
  table.Add({"ends", EndText(forecast)});
}

}  // namespace lorad::client
