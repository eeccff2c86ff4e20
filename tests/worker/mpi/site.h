// What stages over MPI need of their site, on this machine: an ompi-server of the test's own.
// Threads: any.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "server/supervisor/ompi_server.h"
#include "tests/worker/transport/join.h"
#include "worker/mpi/listener.h"

namespace lorad::worker {

class MpiSite {
 public:
  // The process's own, begun at the first call. None where MPI is not installed: the case warns
  // that it is skipped.
  static MpiSite* Here();
  ~MpiSite();
  MpiSite(const MpiSite&) = delete;
  MpiSite& operator=(const MpiSite&) = delete;

  // join_ms is MPI's where it is not given.
  Joined TryJoin(int stages, const SocketsOptions& connections = {},
                 const std::function<void(StageIdentity*)>& change = nullptr) const;
  absl::StatusOr<std::unique_ptr<StageListener>> Listen() const;
  MpiOptions options() const;

  // Waits until there is a server, other than the one at the URI `but`. Its URI.
  std::string AwaitServer(const std::string& but = "") const;
  int64_t server_pid() const { return server_->pid(); }
  // Where everything temporary of the site and of its helpers lies.
  const std::string& folder() const { return folder_; }

 private:
  explicit MpiSite(const std::string& binary);

  std::string folder_;
  std::unique_ptr<server::OmpiServer> server_;
};

}  // namespace lorad::worker
