// Everything that happens to a worker, as values, in the sequence in which the core gets them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"

namespace lorad::worker {

// The first event, once.
struct Started {};

// On the stream of that number (Dial). The first message of a stream is its Welcome.
struct CoordinatorSaid {
  int64_t stream = 0;
  v1::CoordinatorMessage message;
};

// The end of every stream that was dialled, and its last event.
struct StreamBroke {
  int64_t stream = 0;
  absl::Status status;  // never OK
};

// While an order of the engine is carried out: something the coordinator is to know.
struct EngineReported {
  v1::Report report;  // epoch and number are filled in by the core
};

// The one answer to each order of the engine.
//   OK, true     done
//   OK, false    Execute: dropped, for its job has failed, or the Recv was given up
//   error        with a reason for GroupFailed as payload, or without:
//                FormGroup: not formed. Connect: another stage is not there, or refuses.
//                BeginWindow, Execute: the window cannot be executed, or another stage is gone.
//                Execute of a LoadSlot, and UNAVAILABLE: what it starts from cannot be had now, and
//                nothing has been reported.
struct EngineDone {
  absl::StatusOr<bool> done;
  int64_t staged_bytes = 0;  // Execute of a Save that was done: of the whole shard
};

// The end of one try of an upload. OK: it is on the coordinator's disk. sha256: of the shard.
struct UploadDone {
  int64_t upload = 0;
  absl::Status status;
  std::string sha256;
};

// ReadMemory's answer: of this process.
struct MemoryRead {
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;
};

// At the moment that SetTimer named, or a little later.
struct TimerFired {};

// SIGTERM, SIGINT, SIGHUP. One that comes a second later ends it at once.
struct StopRequested {
  bool at_once = false;
};

struct Event {
  double now_ms = 0;  // of a clock that never goes back
  std::variant<Started, CoordinatorSaid, StreamBroke, EngineReported, EngineDone, UploadDone,
               MemoryRead, TimerFired, StopRequested>
      content;
};

}  // namespace lorad::worker
