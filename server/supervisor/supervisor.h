// Embedded workers: child processes of the coordinator, started again with back-off when they end,
// dead when it dies.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace lorad::server {

struct WorkerCommand {
  std::string name;                    // "cpu-0": prefix of its log lines
  std::vector<std::string> arguments;  // the binary's path first
};

struct SupervisorOptions {
  absl::Duration backoff_first = absl::Milliseconds(500);
  absl::Duration backoff_max = absl::Seconds(30);
  // A worker that ran for so long begins again with the first back-off.
  absl::Duration backoff_reset = absl::Seconds(60);
  int line_bytes_max = 8192;  // a longer log line is cut into several
};

struct SupervisorSinks {
  // One line (without its end) that a worker wrote to stdout or stderr.
  std::function<void(const std::string& worker, const std::string& line)> line;
  // Reports a change of a worker: started, ended, will be started again. `wanted`: as it should be.
  std::function<void(const std::string& worker, const std::string& what, bool wanted)> note;
};

// All workers are forked, watched and reaped by one thread, which lives as long as they do: a
// child's PDEATHSIG is bound to the thread that forked it. A worker gets no descriptor but 0, 1 and
// 2, and a clear signal mask.
class Supervisor {
 public:
  // The sinks are called on the supervisor's thread.
  Supervisor(std::vector<WorkerCommand> commands, const SupervisorOptions& options,
             SupervisorSinks sinks);
  // Stop(0) if it was not stopped.
  ~Supervisor();

  Supervisor(const Supervisor&) = delete;
  Supervisor& operator=(const Supervisor&) = delete;

  // Starts none again from here on. Waits `grace` for the workers to end by themselves (they got
  // the order on their control streams), then SIGTERM, then after the same time again SIGKILL.
  // Returns when all are gone.
  void Stop(absl::Duration grace);

  // Kills all that run, even those that stand still. They are started again, as any that end.
  // Threads: any.
  void KillAll();

  // Processes that run now, in the order of the commands; 0 = not running. Any thread.
  std::vector<int64_t> pids() const;
  // How often each was started again. Any thread.
  std::vector<int> restarts() const;

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

// Where `lorad-worker` is: `given` if it is not empty, else beside one of `directories` or in
// ../worker/ from it. NOT_FOUND (WORKER_BINARY_MISSING) names every place looked at.
absl::StatusOr<std::string> FindWorkerBinary(const std::string& given,
                                             const std::vector<std::string>& directories);

}  // namespace lorad::server
