#include "server/driver/disk.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/core/room.h"

namespace lorad::server {
namespace {

constexpr int64_t kShareOfDisk = 16;  // a small disk is for jobs too
constexpr int64_t kFilesResume = RoomWatch::kFilesMin + RoomWatch::kFilesMin / 4;

absl::Status SystemError(const std::string& path, const char* what, int error) {
  const bool full = error == ENOSPC || error == EDQUOT;
  return absl::Status(full ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                      absl::StrCat(path, ": cannot ", what, ": ", strerror(error)));
}

class SystemDisk final : public Disk {
 public:
  explicit SystemDisk(const std::string& directory)
      : directory_(directory), ballast_(directory + "/ballast") {}

  const std::string& path() const override { return directory_; }

  absl::StatusOr<FreeRoom> Free() override {
    struct statvfs status;
    if (statvfs(directory_.c_str(), &status) != 0) return SystemError(directory_, "stat", errno);
    return FreeRoom{static_cast<int64_t>(status.f_bavail) * static_cast<int64_t>(status.f_frsize),
                    status.f_files == 0 ? std::numeric_limits<int64_t>::max()
                                        : static_cast<int64_t>(status.f_favail)};
  }

  absl::StatusOr<int64_t> SizeBytes() override {
    struct statvfs status;
    if (statvfs(directory_.c_str(), &status) != 0) return SystemError(directory_, "stat", errno);
    return static_cast<int64_t>(status.f_blocks) * static_cast<int64_t>(status.f_frsize);
  }

  bool HasBallast(int64_t bytes) override {
    struct stat status;
    return stat(ballast_.c_str(), &status) == 0 && status.st_size == bytes;
  }

  absl::Status MakeBallast(int64_t bytes) override {
    const int file = open(ballast_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return SystemError(ballast_, "make", errno);
    const int error = posix_fallocate(file, 0, bytes);
    close(file);
    if (error == 0) return absl::OkStatus();
    DropBallast().IgnoreError();
    return SystemError(ballast_, "reserve room", error);
  }

  absl::Status DropBallast() override {
    if (unlink(ballast_.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
    return SystemError(ballast_, "remove", errno);
  }

 private:
  const std::string directory_;
  const std::string ballast_;
};

}  // namespace

std::unique_ptr<Disk> RealDisk(const std::string& directory) {
  return std::make_unique<SystemDisk>(directory);
}

RoomWatch::RoomWatch(Disk& disk, int64_t reserve_bytes)
    : disk_(disk),
      reserve_bytes_(std::min(reserve_bytes, disk.SizeBytes().value_or(0) / kShareOfDisk)) {
  ballast_ = reserve_bytes_ > 0 && disk_.HasBallast(reserve_bytes_);
  // One of another size; if it stays, the room is only counted too small.
  if (!ballast_) disk_.DropBallast().IgnoreError();
}

std::optional<RoomChanged> RoomWatch::Look() {
  if (!watches()) return std::nullopt;
  absl::StatusOr<FreeRoom> free = disk_.Free();
  if (!free.ok()) return std::nullopt;  // what is wrong shows when something is written
  const int64_t resume_bytes = reserve_bytes_ + reserve_bytes_ / 4;
  if (!ballast_ && free->bytes >= reserve_bytes_ + resume_bytes &&
      disk_.MakeBallast(reserve_bytes_).ok()) {
    ballast_ = true;
    free->bytes -= reserve_bytes_;
  }
  const int64_t wanted_bytes =
      (low_ ? resume_bytes : reserve_bytes_) + (ballast_ ? 0 : reserve_bytes_);
  const int64_t wanted_files = low_ ? kFilesResume : kFilesMin;
  RoomChanged room{disk_.path(), free->bytes, wanted_bytes, free->files, wanted_files};
  const bool was_low = std::exchange(low_, room.low());
  const FreeRoom told = std::exchange(told_, *free);
  if (!low_ && !was_low) return std::nullopt;
  if (low_ && was_low && free->bytes == told.bytes && free->files == told.files) {
    return std::nullopt;
  }
  // The refusal says how much room must be free until it goes on.
  if (low_) {
    room.wanted_bytes = resume_bytes + (ballast_ ? 0 : reserve_bytes_);
    room.wanted_files = kFilesResume;
  }
  std::lock_guard lock(refused_mutex_);
  refused_ = low_ ? std::optional(room) : std::nullopt;
  return room;
}

absl::Status RoomWatch::Check() const {
  std::optional<RoomChanged> room;
  {
    std::lock_guard lock(refused_mutex_);
    room = refused_;
  }
  if (!room) return absl::OkStatus();
  if (const absl::StatusOr<FreeRoom> free = disk_.Free(); free.ok()) {
    room->free_bytes = free->bytes;
    room->free_files = free->files;
  }
  return CheckRoom(*room);
}

std::string RoomWatch::Describe() const {
  const absl::StatusOr<FreeRoom> free = disk_.Free();
  if (!free.ok()) return std::string(free.status().message());
  if (free->files < kFilesMin) {
    return absl::StrCat(disk_.path(), " has ", free->files, " inodes free, and ", kFilesMin,
                        " are wanted");
  }
  return absl::StrCat(disk_.path(), " has ", SpaceText(free->bytes, 2 * reserve_bytes_));
}

bool RoomWatch::GiveUpBallast() {
  if (!ballast_ || !disk_.DropBallast().ok()) return false;
  ballast_ = false;
  return true;
}

}  // namespace lorad::server
