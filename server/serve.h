// `lorad serve` as a library: the whole daemon in one object.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "server/connections/listen.h"
#include "server/core/core.h"
#include "server/supervisor/worker_commands.h"
#include "storage/files/files.h"
#include "storage/job_store.h"

namespace lorad::server {

struct ServeOptions {
  std::string data_dir;
  std::string listen = "127.0.0.1:7070";
  std::string worker_listen;  // for workers on other hosts; "" = nowhere
  std::vector<std::string> model_roots = {"/"};
  std::vector<std::string>
      allow_users;  // names or numbers: may speak besides the daemon's and root
  CoreOptions core;
  int64_t reserve_bytes = int64_t{64} << 20;  // of room on the disk (disk.h)

  WorkerOptions workers;  // embedded ones; with their transport "mpi" the site has an ompi-server
};

// "1073741824", "512MiB", "8GiB".
absl::StatusOr<int64_t> ParseBytes(const std::string& text);

class Daemon {
 public:
  // Opens the data directory, serves, and starts the embedded workers. `files` must outlive the
  // daemon; `hooks` is the store's seam for tests.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(const ServeOptions& options,
                                                       storage::Files& files,
                                                       storage::StoreHooks hooks = {});
  // Ends without a clean stop, like a crash: what was acknowledged is kept.
  virtual ~Daemon() = default;

  virtual const ListenAddress& address() const = 0;
  // For workers on other hosts; without --worker-listen it says nothing.
  virtual const ListenAddress& worker_address() const = 0;
  virtual std::vector<int64_t> worker_pids() const = 0;

  // Clean stop: health says so, watches end, running jobs are cut and saved, workers end. A job
  // that is not saved at `deadline` goes on from its checkpoint before.
  virtual void Stop(absl::Time deadline) = 0;
};

// Starts the daemon, prints "lorad listening on HOST:PORT" on stdout, and with --worker-listen
// "lorad listening for workers on HOST:PORT", waits for SIGTERM or SIGINT, and stops it cleanly;
// what does not end in a minute and a quarter is left, and the process ends. A second signal ends
// it at once. Call on the main thread, before any other thread is started.
absl::Status RunServer(const ServeOptions& options, storage::Files& files,
                       storage::StoreHooks hooks = {});

}  // namespace lorad::server
