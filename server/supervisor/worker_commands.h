// Which embedded workers `lorad serve` starts, and with which command lines.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/supervisor/supervisor.h"

namespace lorad::server {

struct WorkerChoice {
  enum class Kind {
    kAuto,  // one for each visible GPU; where there is none, one on the CPU
    kNone,  // workers are started by others
    kCpu,
    kCuda,
  };
  Kind kind = Kind::kAuto;
  int count = 1;            // kCpu
  std::vector<int> gpus{};  // kCuda: these; empty: all that are visible
  bool operator==(const WorkerChoice&) const = default;
};

// "auto", "none", "cpu:N" (N from 1 to 64), "cuda", "cuda:I,J,..".
absl::StatusOr<WorkerChoice> ParseWorkers(const std::string& text);

struct WorkerOptions {
  WorkerChoice choice = {};
  int threads = 0;             // of each on the CPU; 0 = the machine's, shared out
  int64_t memory_bytes = 0;    // of each; 0 = on the CPU four fifths of what is available, shared
                               // out; on a GPU what the worker finds free
  std::string precision = {};  // of GPUs: "bf16" or "fp32"; empty = the worker's default
  std::string transport = {};  // by which they reach other stages; empty = the worker's default
  std::string stage_address = {};  // where other stages reach them; empty = on this host alone
  std::string binary = {};         // empty = beside one of `directories`, or in ../worker/
  std::vector<std::string> directories = {};
};

// Finds the binary and asks it for the devices it can use (lorad-worker --list-devices). None for
// kNone. --coordinator is left to the caller, who knows its port later. Errors:
// WORKER_BINARY_MISSING; WORKER_BINARY_BROKEN, it cannot run here; NO_SUCH_DEVICE, a GPU that was
// asked for is not there (the message says which are).
absl::StatusOr<std::vector<WorkerCommand>> WorkerCommands(const WorkerOptions& options);

}  // namespace lorad::server
