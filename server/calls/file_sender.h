// A file is sent to a client, piece by piece as it reads them.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "server/calls/backend.h"
#include "server/calls/strand.h"
#include "server/errors/grpc_status.h"

namespace lorad::server {

// Called on a thread for files, one call after the other, and one message ahead of the client.
template <class Message>
class Source {
 public:
  virtual ~Source() = default;
  // Who calls, by its certificate ("" = somebody of this host): once, before the first Next.
  virtual void ComesTo(const std::string& /*worker*/) {}
  // The next message; false: there is none any more.
  virtual absl::StatusOr<bool> Next(Message* message) = 0;
};

// Belongs to itself. To a worker it takes no place from clients' downloads, and no thread of
// theirs.
template <class Message>
class FileSender final : public grpc::ServerWriteReactor<Message> {
 public:
  using Who = Connections::Who;

  FileSender(Backend& backend, grpc::CallbackServerContext* context, Who who,
             std::unique_ptr<Source<Message>> source)
      : here_(backend.calls),
        backend_(backend),
        strand_(who == Who::kWorker ? backend.fetches : backend.files),
        timer_(backend.patience, [context] { context->TryCancel(); }),
        source_(std::move(source)) {
    if (absl::Status status = Enter(CallerOf(*context), who); !status.ok()) {
      End(status);
      return;
    }
    strand_.Post([this] { Send(); });
  }

  void OnWriteDone(bool ok) override {
    timer_.Stop();
    strand_.Post([this, ok] {
      if (ok) return Send();
      End(absl::CancelledError("the client left, or did not read"));
    });
  }
  void OnDone() override {
    timer_.Close();
    strand_.Post([this] { delete this; });
  }

 private:
  absl::Status Enter(const Caller& caller, Who who) {
    absl::StatusOr<Connections::Visit> visit = backend_.connections.Enter(caller, who);
    if (!visit.ok()) return visit.status();
    visit_.emplace(*std::move(visit));
    source_->ComesTo(visit_->worker());
    if (who == Who::kWorker) return absl::OkStatus();
    absl::StatusOr<Gate::Pass> pass = backend_.downloads.Enter();
    if (!pass.ok()) return pass.status();
    pass_.emplace(*std::move(pass));
    return absl::OkStatus();
  }

  // The next message is made while the last one is written: reading and sending overlap.
  void Send() {
    if (!next_is_made_) MakeNext();
    next_is_made_ = false;
    if (!more_.ok()) return End(more_.status());
    if (!*more_) return End(absl::OkStatus());
    std::swap(message_, next_);
    timer_.Start(backend_.waits.idle);
    this->StartWrite(&message_);
    MakeNext();
  }

  void MakeNext() {
    next_.Clear();
    more_ = source_->Next(&next_);
    next_is_made_ = true;
  }

  void End(const absl::Status& status) { this->Finish(ToGrpc(status)); }

  const Attendance::Token here_;
  Backend& backend_;
  Strand strand_;
  std::optional<Connections::Visit> visit_;
  std::optional<Gate::Pass> pass_;
  Patience::Timer timer_;
  // The strand alone:
  const std::unique_ptr<Source<Message>> source_;
  Message message_;  // that is written
  Message next_;
  absl::StatusOr<bool> more_ = false;  // what Next said of next_
  bool next_is_made_ = false;
};

}  // namespace lorad::server
