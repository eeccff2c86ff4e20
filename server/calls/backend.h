// The base of the services: the driver, threads for what would hold up gRPC's own, and limits that
// keep a share of everything for workers.
#pragma once

#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/calls/patience.h"
#include "server/calls/watch_hub.h"
#include "server/calls/worker_epochs.h"
#include "server/connections/connections.h"
#include "server/driver/driver.h"
#include "server/driver/task_pool.h"
#include "storage/credentials/certificate.h"

namespace lorad::server {

// At most `places_max` at once. Any thread.
class Gate {
 public:
  // Held while inside; leaves when it goes.
  class Pass {
   public:
    explicit Pass(Gate* gate) : gate_(gate) {}
    Pass(Pass&& other) noexcept : gate_(other.gate_) { other.gate_ = nullptr; }
    Pass& operator=(Pass&&) = delete;
    ~Pass() {
      if (gate_ != nullptr) gate_->inside_ -= 1;
    }

   private:
    Gate* gate_;
  };

  // `what` in the plural: "watches".
  Gate(std::string what, int places_max) : what_(std::move(what)), places_max_(places_max) {}

  // RESOURCE_EXHAUSTED (TOO_MANY_CALLS) when it is full.
  absl::StatusOr<Pass> Enter();

 private:
  const std::string what_;
  const int places_max_;
  std::atomic<int> inside_{0};
};

// The calls that are not quite gone yet: gRPC is done with one before its last task has run.
class Attendance {
 public:
  class Token {
   public:
    explicit Token(Attendance& attendance);
    Token(const Token&) = delete;
    Token& operator=(const Token&) = delete;
    ~Token();

   private:
    Attendance& attendance_;
  };
  void WaitUntilEmpty();

 private:
  std::mutex mutex_;
  std::condition_variable left_;
  int present_ ABSL_GUARDED_BY(mutex_) = 0;
};

// How long a stream is waited for.
struct StreamWaits {
  absl::Duration first_message = absl::Seconds(5);
  absl::Duration idle = absl::Seconds(30);      // an upload that sends nothing, a download not read
  absl::Duration bookmark = absl::Seconds(10);  // a watch of which nothing was told, but might be
};

// By what workers on other hosts are known.
struct SiteCredentials {
  std::shared_ptr<const storage::Authority>
      authority;  // null: there are none. Shared with the door
  std::function<absl::Time()> wall_clock;
};

// The URI of the site's ompi-server; `silent`: of one that has not answered (OmpiServer::Find).
// Null: the site has none. Any thread.
using FindMpiServer = std::function<absl::StatusOr<std::string>(const std::string& silent)>;

struct Backend {
  Backend(Driver& driver, std::vector<std::string> model_roots, bool own_workers, StreamWaits waits,
          ConnectionLimits connection_limits, SiteCredentials site = {},
          FindMpiServer find_mpi_server = nullptr);

  Driver& driver;
  const std::vector<std::string> model_roots;  // models lie beneath one of them
  const bool own_workers;                      // of the daemon's: one will connect
  const StreamWaits waits;
  const SiteCredentials site;
  const FindMpiServer find_mpi_server;
  Connections connections;
  Gate watches;
  Gate uploads;
  Gate downloads;
  Gate workers;
  WorkerEpochs epochs;
  std::atomic<bool> stopping{false};  // long calls end when they see it
  Attendance calls;

  // Threads, each kind for what must not wait for the others. All calls must have left before they
  // go.
  TaskPool answers{1};       // hands on what the driver said
  TaskPool reads{2};         // the store, small files
  TaskPool files;            // what clients send and are sent: hashed, tokenized, synced
  TaskPool worker_files{2};  // checkpoints' shards
  TaskPool fetches{2};       // slot contents
  WatchHub watch_hub;
  Patience patience{absl::Milliseconds(100)};
};

}  // namespace lorad::server
