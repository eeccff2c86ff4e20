// Runs the core: the loop (loop.h) on a thread of its own, its mail, and threads on which files
// are written, windows planned and rows checked.
//
// How a service asks:
//   StatusOr<v1::Job> job = driver.Ask<v1::Job>(v1::GetJobRequest(...), deadline);
// How a create with a file asks: write driver.data_dir().NewUpload() through Files, Sync it, then
//   driver.Ask<v1::Dataset>(CreateDataset{...});  the upload is the driver's from then on.
// How a watch runs:
//   SnapshotJobs{names, after, limit, revision} page by page, as things stood up to the revision
//   that is driver.revisions().newest() before; then revisions().Read(revision, ...) again and
//   again, after each change that Listen() announces.
// How a worker's stream runs:
//   connection = driver.ConnectWorker(hello, sender);
//   driver.WorkerSaid(connection, message) for each message;
//   driver.WorkerGone(connection, why) once at the end (also after Close()).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/core/core.h"
#include "server/core/events/data_dir.h"
#include "server/driver/clock.h"
#include "server/driver/mailbox.h"
#include "server/driver/solver.h"
#include "server/store/revision_log.h"
#include "storage/job_store.h"

namespace lorad::storage {
class Files;
}

namespace lorad::server {

// The writing end of one worker's control stream. Called on the driver's threads: neither call may
// block (queue the message for a writer thread), and neither may call the driver.
class WorkerSender {
 public:
  virtual ~WorkerSender() = default;
  virtual void Send(worker::v1::CoordinatorMessage message) = 0;
  virtual void Close(const absl::Status& reason) = 0;
};

struct DriverOptions {
  std::string data_dir;
  CoreOptions core;
  int64_t reserve_bytes = 0;  // of room on the disk (disk.h); 0: none, and it is not watched
  // Called whenever Writable() changes, on the driver's thread; must not block, nor call the
  // driver.
  std::function<void(const absl::Status&)> on_writable;
  Clock* clock = &RealClock();  // must outlive the driver
  int solver_threads = 2;       // row checks; planning has a thread of its own
  MailboxOptions mailbox;       // what finds no place there is answered UNAVAILABLE (BUSY)
};

class Driver {
 public:
  // Makes or opens the data directory, takes its lock, removes left-overs, and takes every live job
  // up again. `files` must outlive the driver. Without a solver it uses the data feed. Errors: of
  // DirectoryLock and JobStore, and of the disk.
  static absl::StatusOr<std::unique_ptr<Driver>> Start(const DriverOptions& options,
                                                       storage::Files& files,
                                                       storage::StoreHooks hooks = {},
                                                       std::unique_ptr<Solver> solver = nullptr);
  // Ends at once, as a crash would but without one: what is not committed is gone. Stop() first for
  // a clean stop.
  virtual ~Driver() = default;

  // Posts a request and waits for its reply; DEADLINE_EXCEEDED when it does not come in time (the
  // request still takes its course), UNAVAILABLE (SHUTTING_DOWN) when the driver ends first, (BUSY)
  // at once when too many wait already. Any thread.
  virtual absl::StatusOr<ReplyValue> Call(Request request,
                                          absl::Time deadline = absl::InfiniteFuture()) = 0;

  // The same without a thread that waits: `on_reply` is called once, on the driver's thread, the
  // caller's own or Stop's, and must neither block nor call the driver.
  using OnReply = std::function<void(absl::StatusOr<ReplyValue>)>;
  // Returns its number, for GiveUp.
  virtual uint64_t Call(Request request, OnReply on_reply) = 0;
  // Nobody waits for that reply any more, though it is still given. The request may still be
  // carried out; what was to be found out for it alone is not.
  virtual void GiveUp(uint64_t) {}

  // The first, where the kind of reply is known. T as events.h says for the request.
  template <class T>
  absl::StatusOr<T> Ask(Request request, absl::Time deadline = absl::InfiniteFuture()) {
    absl::StatusOr<ReplyValue> value = Call(std::move(request), deadline);
    if (!value.ok()) return value.status();
    return std::get<T>(*std::move(value));
  }

  // Control streams of workers. Any thread.
  virtual uint64_t ConnectWorker(worker::v1::Hello hello, std::shared_ptr<WorkerSender> sender) = 0;
  virtual void WorkerSaid(uint64_t connection, worker::v1::WorkerMessage message) = 0;
  virtual void WorkerGone(uint64_t connection, std::string reason) = 0;

  // Read only, straight from the store: what is committed. NOT_FOUND for an unknown job. Any
  // thread.
  virtual absl::StatusOr<v1::ListEventsResponse> ListEvents(const v1::ListEventsRequest&) = 0;
  virtual absl::StatusOr<v1::GetMetricsResponse> GetMetrics(const v1::GetMetricsRequest&) = 0;
  virtual absl::StatusOr<v1::ListCheckpointsResponse> ListCheckpoints(
      const v1::ListCheckpointsRequest&) = 0;
  // Step 0 = the newest. `path`, if given, gets the checkpoint's directory (whole path).
  virtual absl::StatusOr<v1::Checkpoint> GetCheckpoint(const v1::GetCheckpointRequest&,
                                                       std::string* path = nullptr) = 0;
  // A dataset's file, an imported adapter's directory (whole paths). `sha256`, if given, gets that
  // of the file as it was uploaded.
  virtual absl::StatusOr<std::string> DatasetPath(const std::string& name,
                                                  std::string* sha256 = nullptr) = 0;
  virtual absl::StatusOr<std::string> AdapterPath(const std::string& name) = 0;

  // OK, or what clients' writes are answered now, because there is no room on the disk: who brings
  // much may ask before. Any thread.
  virtual absl::Status Writable() { return absl::OkStatus(); }

  virtual RevisionLog& revisions() = 0;
  virtual const DataDir& data_dir() const = 0;
  virtual storage::Files& files() = 0;

  // Clean stop: nothing new is admitted, running groups are cut and saved, workers ordered to shut
  // down. DEADLINE_EXCEEDED leaves what was not saved to the next start, which goes on from the
  // checkpoints before.
  // In either case, calls that are still waiting, and all to come, are answered UNAVAILABLE
  // (SHUTTING_DOWN) then.
  virtual absl::Status Stop(absl::Time deadline) {
    return Call(StopRequested{}, deadline).status();
  }
};

}  // namespace lorad::server
