#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/transport/listener.h"
#include "worker/transport/sockets.h"

namespace lorad::worker {

struct MpiOptions {
  std::string helper;  // path of lorad-mpi (FindHelper)
  // The URI of the site's ompi-server (its --report-uri), asked for whenever stages join: there may
  // be another one by then. UNAVAILABLE: it is being started. `silent`: one that has not answered,
  // so that the site starts another; else empty. Called on Join's thread; returns within seconds.
  std::function<absl::StatusOr<std::string>(int64_t epoch, const std::string& silent)> find_server;
  // silence_ms holds for the helpers of other stages too. MPI takes 0.4 s to begin and up to 2 s
  // for each connection, however long the coordinator's lease is, so join_ms is not bounded by
  // that.
  SocketsOptions connections = {.join_ms = 20'000};
};

// The stages of a group over MPI, for sites whose fabric speaks it (docs/engine.md). Shape,
// handshake, waits and errors are those of the stages over TCP (sockets.h): each connection of this
// worker goes to a process beside it, `lorad-mpi`, which carries its bytes to the one of the other
// stage by MPI. No call of MPI is made in this process, so none can hang or end it.
//
// What differs: the helpers connect once, so a listener joins once. A stage that is refused ends
// the Join of all that speak with it, and the group is joined again with new listeners.
class MpiListener : public StageListener {
 public:
  // UNAVAILABLE: descriptors or ports are short.
  static absl::StatusOr<std::unique_ptr<StageListener>> Open(MpiOptions options);
  MpiListener(const MpiListener&) = delete;
  MpiListener& operator=(const MpiListener&) = delete;

  // A name by which the others find this stage at the site's server.
  const std::string& endpoint() const override { return endpoint_; }

  // FAILED_PRECONDITION also where an endpoint is no name of MPI's, and where the site has no
  // server. UNAVAILABLE: a helper has ended, and how. The helper ends with the transport, or where
  // there is none. REQUIRES: was not called before.
  absl::StatusOr<std::unique_ptr<Transport>> Join(
      const StageIdentity& me, const std::vector<std::string>& endpoints) override;
  void Interrupt() override { wake_up_->Set(); }

 private:
  MpiListener(Listening listening, MpiOptions options);

  absl::StatusOr<std::unique_ptr<Transport>> JoinAt(const std::string& server, Deadline deadline,
                                                    const StageIdentity& me,
                                                    const std::vector<std::string>& endpoints);

  const Listening listening_;  // for the helper, on this machine alone
  const MpiOptions options_;
  const std::string endpoint_;
  const std::shared_ptr<WakeUp> wake_up_ = std::make_shared<WakeUp>();  // a helper may live longer
};

}  // namespace lorad::worker
