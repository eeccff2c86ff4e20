#ifndef LORAD_WORKER_CONTROL_H_
#define LORAD_WORKER_CONTROL_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "lorad/worker/v1/worker.pb.h"
#include "worker/clock.h"
#include "worker/executor.h"
#include "worker/reports.h"

namespace lorad::worker {

inline constexpr int kProtocolVersion = 1;

// The worker's end of the control stream (lorad.worker.v1): dials the coordinator, says hello,
// hands orders to the executor, and sends heartbeats and reports. When the stream breaks, the
// executor goes on with the windows it has; a new stream is tried with growing pauses, and a
// coordinator that still wants the group gets the reports it has not acknowledged. A group that
// nobody asked for during one lease is given up.
class ControlStream {
 public:
  struct Options {
    std::string coordinator;  // host:port
    v1::Hello hello;          // what does not change from stream to stream
    int64_t pause_first_ms = 100;
    int64_t pause_last_ms = 5000;
  };

  // `executor` and `reports` must outlive it.
  ControlStream(Options options, Executor* executor, ReportLog* reports, Clock clock);
  ~ControlStream();
  ControlStream(const ControlStream&) = delete;
  ControlStream& operator=(const ControlStream&) = delete;

  // Until Stop, or until the coordinator says Shutdown: OK. An error: the coordinator refuses this
  // worker for good (another protocol version, a name that is taken).
  absl::Status Run();

  // Threads: any.
  void Stop();

 private:
  struct Stream;

  // One stream from dialling to its end.
  absl::Status RunStream(Stream* stream);
  absl::Status Greet(Stream* stream);
  void ReadOrders(Stream* stream);
  void Handle(const v1::CoordinatorMessage& message, Stream* stream);
  v1::Heartbeat MakeHeartbeat() const;
  void WriteMessages(Stream* stream);
  void Enqueue(Stream* stream, v1::WorkerMessage message);
  // False: stopped.
  bool Pause(int64_t milliseconds);

  const Options options_;
  Executor* const executor_;
  ReportLog* const reports_;
  const Clock clock_;

  // Only Run's thread.
  int64_t heartbeat_ms_ = 1000;
  int64_t lease_ms_ = 10000;

  std::mutex mutex_;
  std::condition_variable wake_;
  // GUARDED_BY(mutex_)
  bool stop_ = false;
  Stream* current_ = nullptr;
};

}  // namespace lorad::worker

#endif  // LORAD_WORKER_CONTROL_H_
