// Renews a worker's certificate before it ends.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "worker/link/credentials.h"

namespace grpc {
class ClientContext;
}

namespace lorad::worker {

// When two thirds of its life are over a certificate is renewed, for a new key, over a connection
// made with it; streams that stand are not touched. What fails is tried again, a sixtieth of its
// life later (a second at least, ten minutes at most). One thread of its own.
class Renewal {
 public:
  // `credentials` must outlive it.
  Renewal(std::string coordinator, Credentials* credentials, std::function<absl::Time()> clock);
  ~Renewal();
  Renewal(const Renewal&) = delete;
  Renewal& operator=(const Renewal&) = delete;

 private:
  void Run();
  // False: it ends.
  bool WaitUntil(absl::Time due);
  absl::Status Renew();

  const std::string coordinator_;
  Credentials* const credentials_;
  const std::function<absl::Time()> clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool ends_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* call_ ABSL_GUARDED_BY(mutex_) = nullptr;  // the one under way
  std::thread thread_;
};

}  // namespace lorad::worker
