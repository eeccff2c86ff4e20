// The core's effects on files. Each is whole or not there, whenever the process ends.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/events/data_dir.h"
#include "server/core/events/effects.h"
#include "storage/files/files.h"

namespace lorad::server {

absl::Status Execute(const MoveUpload& effect, const DataDir& data_dir, storage::Files& files);
// All of the checkpoint but its create_time.
absl::StatusOr<v1::Checkpoint> Execute(const WriteCheckpoint& effect, const DataDir& data_dir,
                                       storage::Files& files);
// OK: all of it is there, and as it was committed.
absl::Status Execute(const ReadContent& effect, const DataDir& data_dir, storage::Files& files);
absl::Status Execute(const RemovePath& effect, const DataDir& data_dir, storage::Files& files);

}  // namespace lorad::server
