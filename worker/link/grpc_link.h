#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "worker/link/credentials.h"
#include "worker/link/link.h"

namespace lorad::worker {

// The control stream over gRPC: one thread dials and reads, and one writes while a stream stands. A
// peer that does not answer for kKeepaliveMs twice over is gone (channel.h).
class GrpcLink : public Link {
 public:
  // To HOST:PORT; over TLS where `credentials` are not null. They must outlive it.
  explicit GrpcLink(std::string coordinator, const Credentials* credentials = nullptr);
  ~GrpcLink() override;

  void Dial(int64_t stream, const v1::Hello& hello, Listener* listener) override;
  void HangUp() override;
  void Say(v1::WorkerMessage message) override;
  void Close() override;

 private:
  struct Call;
  struct Order {
    int64_t stream = 0;
    v1::Hello hello;
    Listener* listener = nullptr;
  };

  void Run();
  absl::Status RunStream(const Order& order, Call* call);
  void WriteMessages(Call* call);

  const std::string coordinator_;
  const Credentials* const credentials_;

  std::mutex mutex_;
  std::condition_variable wake_;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<Order> order_ ABSL_GUARDED_BY(mutex_);
  Call* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the stream under way
  // The messages that wait to be written: as many as reports that are not acknowledged, at most.
  std::deque<v1::WorkerMessage> queue_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

}  // namespace lorad::worker
