// WatchJobs: the present state in pages, then every change, without a thread of its own.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <deque>
#include <optional>
#include <set>
#include <string>

#include "lorad/v1/jobs.pb.h"
#include "server/calls/backend.h"
#include "server/calls/question.h"

namespace lorad::server {

// Belongs to itself. Writes bytes: a revision that the log keeps is sent from there to all
// watchers.
class WatchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                          private WatchHub::Watcher {
 public:
  WatchStream(Backend& backend, grpc::CallbackServerContext* context,
              const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  absl::Status Enter(const std::string& peer, const grpc::ByteBuffer& request);

  // All of this on the hub's thread.
  void Begin();
  void AskForPage(int64_t after, int64_t limit);
  void TakePage(const JobSnapshot& page);
  void Look() override;
  // Writes the next message that waits, or goes for more.
  void GoOn();
  void End(const absl::Status& status);

  const Attendance::Token here_;
  Backend& backend_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  std::optional<Gate::Pass> pass_;
  v1::WatchJobsRequest request_;
  std::set<std::string> names_;  // empty: all

  // The hub's thread alone:
  std::deque<grpc::ByteBuffer> messages_;  // that wait; the first is being written
  int64_t revision_ = 0;                   // sent, or not asked for, up to here
  bool following_ = false;                 // the log; else pages of the present state
  bool heard_ = false;                     // the client got the answer that its watch stands
  bool ended_ = false;
};

}  // namespace lorad::server
