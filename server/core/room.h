// The answers to those who ask for more of a disk without room.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "server/core/events/events.h"

namespace lorad::server {

// "48 KiB free, and 80 MiB are wanted": what is free is rounded down, what is wanted up.
std::string SpaceText(int64_t free_bytes, int64_t wanted_bytes);

// OK where there is room, else RESOURCE_EXHAUSTED (DISK_FULL) with the numbers in its metadata:
// path and free_bytes and wanted_bytes, or (of the inodes) free_files and wanted_files.
absl::Status CheckRoom(const RoomChanged& room);

}  // namespace lorad::server
