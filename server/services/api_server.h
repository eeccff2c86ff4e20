// The gRPC server with all services, health and reflection on it.
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "server/calls/backend.h"
#include "server/connections/listen.h"
#include "server/driver/driver.h"
#include "storage/credentials/certificate.h"

namespace lorad::server {

struct ApiServerOptions {
  ListenAddress listen;
  std::vector<std::string> model_roots = {"/"};
  // For workers on other hosts; without an authority there is no such door.
  ListenAddress worker_listen;
  std::shared_ptr<const storage::Authority> authority;
  std::function<absl::Time()> wall_clock = absl::Now;  // certificates are judged by it
  FindMpiServer find_mpi_server;                       // null: no stages are joined over MPI
  bool own_workers = false;          // the daemon starts workers itself: one will connect
  std::vector<uid_t> allowed_users;  // may speak besides root and the daemon's own user
  // The longest waits of a stream: until its first message; while an upload sends nothing or a
  // download is not read.
  absl::Duration first_message_wait = absl::Seconds(5);
  absl::Duration idle_wait = absl::Seconds(30);
  absl::Duration bookmark_wait = absl::Seconds(10);  // how long a watch is silent before one
  int connections_max = 0;                           // 0: what the process's file descriptors allow
};

class ApiServer {
 public:
  // Serves at once. `driver` must outlive it. UNAVAILABLE (PORT_IN_USE, CANNOT_LISTEN,
  // PEER_CHECK_UNAVAILABLE).
  static absl::StatusOr<std::unique_ptr<ApiServer>> Start(const ApiServerOptions& options,
                                                          Driver& driver);
  virtual ~ApiServer() = default;

  // With the port that was chosen where 0 was asked for.
  virtual const ListenAddress& address() const = 0;
  // Of the door for workers on other hosts.
  virtual const ListenAddress& worker_address() const = 0;

  // Sets what grpc.health.v1 says of the services whose creates need room on the disk
  // (lorad.v1.Jobs, Datasets, Adapters, Models); of the whole ("") it still says SERVING. Any
  // thread.
  virtual void SetWritable(bool writable) = 0;
  // grpc.health.v1 says NOT_SERVING from here on, and watches end.
  virtual void BeginStop() = 0;
  // Takes no more calls; those under way may end until `deadline`, then they are cancelled. Returns
  // when all are gone.
  virtual void Stop(absl::Time deadline) = 0;
};

}  // namespace lorad::server
