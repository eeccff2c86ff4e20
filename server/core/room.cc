// The disk has no room: nothing new is begun, what runs waits, and all goes on by itself.
#include "server/core/room.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/state.h"
#include "server/errors/errors.h"
#include "sizes/bytes_text.h"

namespace lorad::server {

std::string SpaceText(int64_t free_bytes, int64_t wanted_bytes) {
  return absl::StrCat(sizes::ThereText(free_bytes), " free, and ", sizes::NeededText(wanted_bytes),
                      " are wanted");
}

absl::Status CheckRoom(const RoomChanged& room) {
  if (!room.low()) return absl::OkStatus();
  if (room.free_bytes >= room.wanted_bytes) {
    return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                 absl::StrCat("the disk of ", room.path, " has ", room.free_files,
                              " inodes free, and ", room.wanted_files,
                              " are wanted before anything new is taken on: remove files there"),
                 {{"path", room.path},
                  {"free_files", absl::StrCat(room.free_files)},
                  {"wanted_files", absl::StrCat(room.wanted_files)}});
  }
  return Error(absl::StatusCode::kResourceExhausted, "DISK_FULL",
               absl::StrCat("the disk of ", room.path, " has ",
                            SpaceText(room.free_bytes, room.wanted_bytes),
                            " before anything new is taken on: make room there"),
               {{"path", room.path},
                {"free_bytes", absl::StrCat(room.free_bytes)},
                {"wanted_bytes", absl::StrCat(room.wanted_bytes)}});
}

void Core::State::OnRoom(const RoomChanged& room) {
  const bool was_low = !turn_.room().ok();
  turn_.SetRoom(CheckRoom(room));
  if (turn_.room().ok() == !was_low) return;
  turn_.WantSchedule();
  const bool low = !was_low;
  const std::string why(turn_.room().message());
  if (low) {
    turn_.Warn(absl::StrCat(why, "; jobs wait until then"));
  } else {
    turn_.Info(absl::StrCat("the disk of ", room.path, " has room again: all goes on"));
  }
  const std::set<std::string> live = jobs_.live();
  for (const std::string& name : live) {
    JobState& job = *jobs_.Find(name);
    if (low && IsPlaced(job.state())) {
      jobs_.AddEvent(job, "DISK_FULL", why + "; the job waits where it is");
    }
  }
  // They are stalled, or are no more.
  for (const std::string& name : groups_.names()) ForgetPace(*groups_.Find(name));
}

void Core::State::ForgetPace(GroupState& group) {
  group.pace.Clear();
  for (const auto& [name, member] : group.members) {
    JobState* job = jobs_.Find(name);
    if (job && IsPlaced(job->state())) jobs_.ForgetPace(*job);  // else a guest, or on its way out
  }
}

}  // namespace lorad::server
