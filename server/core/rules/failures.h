// Which failures end a job, and which pass. See docs/coordinator.md.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "lorad/v1/jobs.pb.h"

namespace lorad::server {

enum class FailureKind {
  kUser,     // the job's own, or of what it names: it would come again. FAILED, USER
  kPassing,  // of the world: disk, descriptors, shares, memory, lost workers. The job waits
  kServer,   // surely ours. FAILED, SERVER
};

// Reasons of what the feed could not read: rows, and tokens that are made again (Feed::Plan).
inline constexpr char kRowsNotRead[] = "ROWS_NOT_READ";
inline constexpr char kRowsNotReady[] = "ROWS_NOT_READY";

// Reasons of workers. The memory it offered is not there: other processes of its machine have it;
inline constexpr char kMemoryTaken[] = "MEMORY_TAKEN";
// what it was to hold is more than was counted, and than it offered;
inline constexpr char kMemory[] = "MEMORY";
// the files of a model on its host are not the coordinator's, or not there;
inline constexpr char kModelDiffers[] = "MODEL_DIFFERS";
inline constexpr char kModelNotFound[] = "MODEL_NOT_FOUND";
// the way to another stage of its group is gone;
inline constexpr char kStageLost[] = "STAGE_LOST";
// what it was to load is not what was committed, or what it got is not whole.
inline constexpr char kCheckpointCorrupt[] = "CHECKPOINT_CORRUPT";
inline constexpr char kContentInvalid[] = "CONTENT_INVALID";

// By a table in code. A reason that is not in it passes: nobody is sure of it.
FailureKind KindOf(std::string_view reason);

// Whether a worker may give that reason for what it could not form or load.
bool IsWorkers(std::string_view reason);

// The category of a job that fails for it. REQUIRES: it does not pass.
v1::JobError::Category CategoryOf(FailureKind kind);

// The reason that the status carries; else what its code says of a file that could not be read or
// written: DISK_FULL, or `otherwise`.
std::string ReasonOf(const absl::Status& status, const std::string& otherwise);

}  // namespace lorad::server
