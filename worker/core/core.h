#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lorad/worker/v1/worker.pb.h"
#include "worker/core/effects.h"
#include "worker/core/events.h"

namespace lorad::worker {

inline constexpr int kProtocolVersion = 1;

struct CoreOptions {
  v1::Hello hello;  // what does not change from stream to stream
  // Between two tries to reach the coordinator: at first so long, then twice as long each time.
  int64_t pause_first_ms = 100;
  int64_t pause_last_ms = 5000;
  // An engine that is not back after so long, when its group is given up, never will be.
  int64_t leave_ms = 60'000;
  // Told to end, it waits so long for its jobs to be saved; 0: not at all.
  int64_t grace_ms = 20'000;
  // Without a group the weights of the last one are kept so long.
  int64_t keep_weights_ms = 30'000;
};

// Every decision of a worker, in one single-threaded function Apply(event) -> effects: how it lives
// with its coordinator, which operation the engine does next, what is cut, when a shard is sent
// again, what is reported. No clock, thread, file or network: the same code runs under the driver
// (driver.h) and in a simulator. See docs/engine.md.
//
// The stream: when it breaks, the engine goes on with the windows it has, but for what must be
// fetched or uploaded. A new one is tried with growing pauses, its Hello says what is held, and a
// coordinator that still wants the group (ADR 0028) gets every report that it has not acknowledged.
// A group that nobody asked for during one lease is given up, and so is that of a coordinator which
// closes the stream. Before the next dial the engine must have left its group; one that hangs ends
// the process.
//
// Told to end, it says so (Leaving) and goes on, until the coordinator has let it go (Shutdown) or
// is lost, or the grace period is over.
//
// A group of several stages is formed in two phases: FormGroup, and once all stages have said
// GroupFormed, Connect, which joins them. A stage that cannot be reached, or is gone later, ends
// the group's epoch here: GroupFailed{STAGE_LOST}. Nothing waits for other stages when the group is
// given up.
//
// A group that is left leaves its weights behind, for another of the same model and the same blocks
// that may follow at once; where none does, they are dropped after a while.
//
// Windows are executed in the order they came, for one group at a time. Cut answers the smallest
// microbatch number k whose Forward (or Evaluate) is not yet enqueued and holds everything from k
// on until CutAt says what is dropped; then each window at hand runs what follows from the
// microbatches before it, and a job in mid-batch loses its accumulated gradient. A message of the
// coordinator for an epoch that is not held is ignored; an impossible one for the epoch that is
// held is the coordinator's defect: GroupFailed{BAD_WINDOW}, and nothing of that epoch is executed
// any more.
//
// Saves: a shard is sent until the coordinator has it or does not want it, a few jobs' at once. A
// Save that finds its job's staging memory in use is put off to the next moment at which the job is
// still at that step; the job's next Step waits for it as long as the shard before it is within its
// first try, and after that the save is lost for what follows. A slot is freed behind its shard, at
// the end of its window at the latest; that is tried no second time, and a save that was put off
// behind it is lost.
class WorkerCore {
 public:
  explicit WorkerCore(CoreOptions options);
  ~WorkerCore();
  WorkerCore(const WorkerCore&) = delete;
  WorkerCore& operator=(const WorkerCore&) = delete;

  std::vector<Effect> Apply(Event event);

  struct Held {
    std::string group;
    int64_t epoch = 0;  // 0 = nothing
  };
  Held held() const;

  // No order of the engine is under way and none is due but for the coordinator's next word.
  bool idle() const;
  // Reports that are not acknowledged.
  int64_t reports_kept() const;

 private:
  class State;
  const std::unique_ptr<State> state_;
};

}  // namespace lorad::worker
