// The state of a worker. A plain value; Cluster holds one for each that is connected or lost.
#pragma once

#include <cstdint>
#include <string>

#include "lorad/worker/v1/worker.pb.h"
#include "planner/cost/memory.h"
#include "server/core/cluster/measured.h"
#include "server/core/cluster/speed.h"

namespace lorad::server {

// A while without work, for twice as long each time.
struct Rest {
  int64_t until_us = 0;
  int times = 0;  // in a row
  std::string why;
};

struct WorkerState {
  uint64_t connection = 0;  // 0 = lost
  worker::v1::Hello hello;
  int64_t connect_wall_us = 0;
  int64_t heard_us = 0;
  int64_t lost_us = 0;         // of one that is lost; if this process never saw it, its start
  int connections = 0;         // since this process started
  int64_t resident_bytes = 0;  // of its process, by its newest heartbeat
  int64_t peak_bytes = 0;      // likewise, by all of them
  ClockOffset clock_offset;
  // Of its process (speeds.cc): its newest microbatches, and when the last of them was;
  Speed speed;
  int64_t measured_us = 0;
  // How slow it is beside its kind (planner::WorkerView), and when what that goes by was measured.
  double slowness = 1;
  int64_t compared_us = 0;
  std::string group;
  std::string reforms;   // the group that it had, which is to be formed again on it
  bool awaited = false;  // lost, of before this start, while its group waits for it (kReturning)
  // While others have taken the memory that it offered, it gets nothing new;
  Rest memory_rest;
  bool memory_was_taken = false;  // once, since its process started
  // nor while the files of a model on its host are missing or other ones;
  Rest files_rest;
  // nor for a while after it said what does not fit. Kept by its name, over its streams.
  Rest lie_rest;
  int lies = 0;  // in all
  // Nor before it has let go of a group that was lost on another worker: what ended that one may be
  // about to end it, and would be held against the next job. 0: of none.
  int64_t leaves_epoch = 0;
  // What its process holds of the group before, until then: planner::WorkerView's.
  std::string loaded_base_model;
  planner::StageRange loaded_blocks;
  int64_t loaded_until_us = 0;
  int32_t joins_failed = 0;  // planner::WorkerView's, of its process
  // It was overdue lately (patience.h), its process: no job waits for it that others would hold.
  int64_t doubtful_until_us = 0;
  // Its process was told to end, and does so without jobs.
  bool leaving = false;
  // By an operator: it gets no new job. Kept by its name, over streams and starts.
  bool drained = false;
  std::string drain_reason;
  int64_t drain_wall_us = 0;

  // It gets no new job, and those that it has leave it.
  bool empties() const { return drained || leaving; }
};

}  // namespace lorad::server
