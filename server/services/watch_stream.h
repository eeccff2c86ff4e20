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
  absl::Status Enter(const Caller& caller, const grpc::ByteBuffer& request);

  // All of this on the hub's thread.
  void Begin();
  void AskForPage();
  void TakePage(const JobSnapshot& page);
  // Changes of long ago are read where it may take a while.
  void ReadStored();
  void Take(RevisionLog::Found found);
  void Look() override;
  // Writes the next message that waits, or goes for more.
  void GoOn();
  // Waits for news, and meanwhile for the time of a bookmark.
  void Rest();
  void EndPresent();
  void AddBookmark();
  void OnSilence();
  // The bytes of a response, and the store's identity behind them.
  void Add(const grpc::Slice& response, int64_t revision);
  void End(const absl::Status& status);

  const Attendance::Token here_;
  Backend& backend_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  std::optional<Gate::Pass> pass_;
  v1::WatchJobsRequest request_;
  std::set<std::string> names_;             // empty: all
  std::optional<Patience::Timer> silence_;  // where bookmarks are wanted

  // The hub's thread alone:
  grpc::Slice store_;                      // a response with nothing but the identity
  std::deque<grpc::ByteBuffer> messages_;  // that wait; the first is being written
  int64_t revision_ = 0;                   // sent, or not asked for, up to here
  int64_t told_ = 0;                       // the client knows that it may resume from here
  int64_t present_ = 0;                    // the present state is that up to here,
  std::set<std::string> changed_;          // but for these jobs, of which the log tells;
  bool present_told_ = false;              // both: the first bookmark says so
  bool following_ = false;                 // the log; else pages of the present state
  bool silence_runs_ = false;
  bool ended_ = false;
};

}  // namespace lorad::server
