// Everything the core can want done. The driver (or the simulator) does it.
//
// Order within one Apply: a Persist is made durable (with all others of the turn, in one
// transaction) before any other effect of that or a later Apply is carried out. Otherwise effects
// are carried out in the order given.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "server/core/events/events.h"
#include "server/core/events/plan.h"
#include "storage/job_store.h"

namespace lorad::server {

struct Persist {
  std::vector<storage::Mutation> mutations;
};

// The one answer to a request. `value` is unset where status is not OK.
struct Reply {
  uint64_t request = 0;
  absl::Status status;
  ReplyValue value;
};

// To the worker of a connection; dropped if that is gone.
struct Send {
  uint64_t connection = 0;
  worker::v1::CoordinatorMessage message;
};

struct Disconnect {
  uint64_t connection = 0;
  absl::Status reason;
};

// One step of the world that watchers see. Revisions come in order, each once.
struct Announce {
  int64_t revision = 0;
  std::string job;        // name
  std::string message;    // v1::WatchJobsResponse, serialized
  bool progress = false;  // of its job nothing else has changed, and the store need not have it
};

// -> RowsChecked.
struct CheckRows {
  std::string key;
  RowSource source;
  std::string share;  // whom it is for: the threads that check rows are shared fairly among these
};

// Nobody waits for that check any more: it ends soon, whatever it finds.
struct CancelRows {
  std::string key;
};

// That dataset goes: its tokens need not be at hand any more. Ends in nothing.
struct CloseRows {
  std::string dataset_path;  // as RowSource has it
};

// -> Planned.
struct Plan {
  uint64_t number = 0;
  PlanInput input;
  bool hurry = false;  // as if Hurry followed at once
};

// The worker of that plan has run out of windows, or nobody waits for it any more: what only makes
// it better is left out. Ends in nothing of its own.
struct Hurry {
  uint64_t number = 0;
};

// Moves an upload (file or directory) to its place below the data directory, durably. ->
// UploadMoved.
struct MoveUpload {
  uint64_t number = 0;
  std::string upload;
  std::string path;
};

// Makes a checkpoint's directory of the uploaded shards of all stages, manifest last, and removes
// the shards. What it holds does not depend on how many there were. -> CheckpointWritten.
struct WriteCheckpoint {
  uint64_t number = 0;
  std::vector<std::string> uploads;  // by stage
  std::string path;                  // below the data directory
  std::string job;
  int64_t step = 0;
  std::string numerics_id;
  std::string base_model_path;
  v1::AdapterConfig adapter;
};

// Reads what a slot starts from to its end, as a worker would get it. -> ContentRead.
struct ReadContent {
  uint64_t number = 0;
  std::string job;
  std::string content;  // as LoadUnit::content
};

// An upload or a path below the data directory that nothing names any more. Ends in nothing.
struct RemovePath {
  std::string path;
};

// -> TimerFired at that time or later.
struct SetTimer {
  uint64_t timer = 0;
  int64_t at_us = 0;  // Moment::steady_us
};

// For the log.
struct Note {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string message;
};

using Effect =
    std::variant<Persist, Reply, Send, Disconnect, Announce, CheckRows, CancelRows, CloseRows, Plan,
                 Hurry, MoveUpload, WriteCheckpoint, ReadContent, RemovePath, SetTimer, Note>;

}  // namespace lorad::server
