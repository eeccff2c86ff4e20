// One worker's control stream.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "lorad/worker/v1/worker.pb.h"
#include "server/calls/backend.h"

namespace lorad::server {

// Without a thread of its own: reads one message after the other, writes orders from a bounded
// queue. Belongs to itself; lives until gRPC is done with it.
class ControlStream final
    : public grpc::ServerBidiReactor<worker::v1::WorkerMessage, worker::v1::CoordinatorMessage> {
 public:
  ControlStream(Backend& backend, grpc::CallbackServerContext* context);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone() override;

 private:
  class Sender;

  absl::Status Greet();
  void Enqueue(worker::v1::CoordinatorMessage order);
  // No more orders; those that wait are still sent.
  void End(const absl::Status& reason);
  void FinishIfDue() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Attendance::Token here_;
  Backend& backend_;
  grpc::CallbackServerContext* const context_;
  Patience::Timer timer_;  // until the Hello
  // The reading side alone, one callback at a time:
  worker::v1::WorkerMessage incoming_;
  std::shared_ptr<Sender> sender_;  // null before the Hello
  uint64_t connection_ = 0;
  std::optional<Connections::Visit> visit_;
  std::optional<Gate::Pass> pass_;
  std::string worker_;  // the name in its Hello

  std::mutex mutex_;
  // The first is being written, if writing_.
  std::deque<worker::v1::CoordinatorMessage> orders_ ABSL_GUARDED_BY(mutex_);
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool welcomed_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status reason_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace lorad::server
