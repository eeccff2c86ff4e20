// The disk that the data directory lies on, as room.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/events/events.h"

namespace lorad::server {

// The room that may still be taken of it, the ballast's not counted.
struct FreeRoom {
  int64_t bytes = 0;
  int64_t files = 0;  // inodes; the largest number where the file system makes them as it goes
};

// The seam. A ballast is a file that holds room, to be given up when it is needed. Loop's thread;
// path() and Free() any.
class Disk {
 public:
  virtual ~Disk() = default;
  virtual const std::string& path() const = 0;
  virtual absl::StatusOr<FreeRoom> Free() = 0;
  virtual absl::StatusOr<int64_t> SizeBytes() = 0;  // of the whole disk
  virtual bool HasBallast(int64_t bytes) = 0;
  // Makes a ballast of so many bytes, all of them there; on an error none is left.
  virtual absl::Status MakeBallast(int64_t bytes) = 0;
  // Absent is no error.
  virtual absl::Status DropBallast() = 0;
};

// By statvfs, with the ballast in DIRECTORY/ballast.
std::unique_ptr<Disk> RealDisk(const std::string& directory);

// Looks after the room: keeps `reserve_bytes`, at most 1/16 of the disk, as ballast, and calls it
// low while less than that, or after it was low than 5/4 of that, is free beside it; and likewise
// while fewer than kFilesMin files can be made. 0: never low, no ballast.
class RoomWatch {
 public:
  static constexpr int64_t kFilesMin = 128;
  RoomWatch(Disk& disk, int64_t reserve_bytes);

  // The event for the core: that the room gets low, how much there is meanwhile, that there is
  // enough again. None where nothing has changed. Makes the ballast where there is
  // room for it.
  std::optional<RoomChanged> Look();
  // OK unless the last look found the room low and it still is: DISK_FULL, with what is free now.
  // Any thread.
  absl::Status Check() const;
  // The store found the disk full. True: the ballast was given up, so there is room for it now.
  bool GiveUpBallast();
  // How much there is and how much is wanted, in words.
  std::string Describe() const;
  bool watches() const { return reserve_bytes_ > 0; }

 private:
  Disk& disk_;
  const int64_t reserve_bytes_;
  bool ballast_ = false;
  bool low_ = false;
  FreeRoom told_;
  mutable std::mutex refused_mutex_;
  std::optional<RoomChanged> refused_ ABSL_GUARDED_BY(refused_mutex_);  // as seen, while it is low
};

}  // namespace lorad::server
