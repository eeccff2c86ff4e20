#include "server/core/events/turn.h"

#include <algorithm>
#include <cassert>

#include "absl/strings/str_cat.h"
#include "server/core/events/store_kinds.h"

namespace lorad::server {

void Turn::Start(Moment now, int64_t starts_before) {
  now_us_ = start_us_ = now.steady_us;
  wall_us_ = start_wall_us_ = now.wall_us;
  starts_ = starts_before + 1;
  Put(storage::PutRecord(kMetaKind, kStartsKey, absl::StrCat(starts_)));
}

void Turn::Begin(Moment now) {
  now_us_ = std::max(now_us_, now.steady_us);
  wall_us_ = now.wall_us;
}

void Turn::StampWall(int64_t wall_us, google::protobuf::Timestamp* time) {
  time->set_seconds(wall_us / 1'000'000);
  time->set_nanos(static_cast<int32_t>(wall_us % 1'000'000) * 1000);
}

void Turn::Answer(uint64_t request, ReplyValue value) {
  Do(Reply{request, absl::OkStatus(), std::move(value)});
}

void Turn::Fail(uint64_t request, absl::Status status) {
  assert(!status.ok());
  Do(Reply{request, std::move(status), {}});
}

void Turn::Info(std::string message) { Do(Note{Note::Level::kInfo, std::move(message)}); }
void Turn::Warn(std::string message) { Do(Note{Note::Level::kWarning, std::move(message)}); }

std::vector<Effect> Turn::End() {
  std::vector<Effect> effects;
  if (!mutations_.empty()) effects.push_back(Persist{std::exchange(mutations_, {})});
  for (Effect& effect : effects_) effects.push_back(std::move(effect));
  effects_.clear();
  return effects;
}

absl::Status Turn::CheckInvariants() const {
  if (mutations_.empty() && effects_.empty() && !schedule_) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("the last turn has left ", mutations_.size(),
                                          " mutations, ", effects_.size(), " effects",
                                          schedule_ ? " and a wish to schedule" : ""));
}

}  // namespace lorad::server
