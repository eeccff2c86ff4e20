// Everything the worker's core can want done. The driver (or the simulator) does it, in the order
// given, and waits for nothing while it does.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// ---- the stream: at most one at a time ----

// -> CoordinatorSaid (a Welcome first), in the end StreamBroke. Numbers count up.
struct Dial {
  int64_t stream = 0;
  v1::Hello hello;
};

// -> StreamBroke, if that has not come yet.
struct HangUp {
  int64_t stream = 0;
};

// Only on a stream that stands. A heartbeat replaces one that still waits to be sent.
struct Say {
  v1::WorkerMessage message;
};

// ---- the engine: one order at a time, each -> EngineReported..., EngineDone ----

// The group that was there before has been left; its weights may serve this one. Reports
// GroupFormed.
struct FormGroup {
  v1::FormGroup order;
};

// Of several stages: this one is joined with the others.
struct Connect {
  v1::Connect order;
  int64_t lease_ms = 0;  // the coordinator's: no stage waits longer for a host that is cut off
};

// Group and slots go; the weights are kept for the next group. No upload is under way.
struct LeaveGroup {};

// No group is there: what is kept of the last one goes.
struct DropWeights {};

struct BeginWindow {
  // Shared with the core; the engine keeps it until EndWindow or LeaveGroup is done.
  std::shared_ptr<const v1::Window> window;
};

// A LoadSlot fetches the slot's content, once, and waits for it a bounded time. A Save copies into
// the slot's staging memory, which nobody reads at that time; it may also come between windows.
struct Execute {
  std::shared_ptr<const v1::Operation> operation;
};

// Jobs that a cut has taken something from lose what their open batches have accumulated.
struct EndWindow {
  std::set<std::string> cut_jobs;
};

// The Recv under way is for activations that are never sent: it ends, done with false.
struct GiveUpReceive {};

// ---- calls ----

// One try to bring the shard that a Save has staged to the coordinator, given up after timeout_ms.
// -> UploadDone. The header lacks the sha256.
struct Upload {
  int64_t upload = 0;  // the same number for every try of a shard
  v1::UploadShardRequest::Header header;
  int64_t timeout_ms = 0;
};

// Uploads, the fetch of a LoadSlot, and whatever the engine's order under way waits for from other
// stages: what was ordered before this and has not ended does so soon, with an error. The way to
// the other stages is of no more use.
struct CancelCalls {};

// ---- the process ----

// -> MemoryRead.
struct ReadMemory {};

// -> TimerFired. Replaces the one before.
struct SetTimer {
  double at_ms = 0;
};

// A line of the log.
struct Note {
  enum class Level { kInfo, kWarning, kError };
  Level level = Level::kInfo;
  std::string text;
};

// Nothing follows; the stream ends once what was said on it is heard. An error: the coordinator
// refuses this worker for good, or its engine hangs.
struct End {
  absl::Status status;
};

using Effect = std::variant<Dial, HangUp, Say, FormGroup, Connect, LeaveGroup, DropWeights,
                            BeginWindow, Execute, EndWindow, GiveUpReceive, Upload, CancelCalls,
                            ReadMemory, SetTimer, Note, End>;

}  // namespace lorad::worker
