// A client sends a file: a config, then chunks, then one answer. One implementation for all such
// calls; an Intake says what becomes of what comes.
#pragma once

#include <grpcpp/server_context.h>
#include <grpcpp/support/server_callback.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "lorad/worker/v1/worker.pb.h"
#include "server/calls/backend.h"
#include "server/calls/question.h"
#include "server/calls/strand.h"
#include "server/calls/stream_errors.h"
#include "server/errors/grpc_status.h"

namespace lorad::server {

// Called on a thread for files, one call after the other. It removes what it holds when it is
// destroyed.
template <class Message>
class Intake {
 public:
  virtual ~Intake() = default;
  // Who calls, by its certificate ("" = somebody of this host): once, before the first Take.
  virtual void ComesFrom(const std::string& /*worker*/) {}
  virtual absl::Status Take(const Message& message) = 0;
  // All has come: it is checked and made durable.
  virtual absl::Status Complete() = 0;
  // The request to the driver, which owns the upload from here on.
  virtual Request Release() = 0;
};

// The driver's answer as the call's.
template <class Response>
void SetResponse(ReplyValue value, Response* response) {
  *response = std::get<Response>(std::move(value));
}
inline void SetResponse(ReplyValue, worker::v1::UploadShardResponse*) {}  // has nothing in it

template <class Message, class Response>
class FileReceiver final : public grpc::ServerReadReactor<Message> {
 public:
  using Who = Connections::Who;

  FileReceiver(Backend& backend, grpc::CallbackServerContext* context, Who who,
               std::unique_ptr<Intake<Message>> intake, Response* response)
      : here_(backend.calls),
        backend_(backend),
        context_(context),
        response_(response),
        strand_(who == Who::kWorker ? backend.worker_files : backend.files),
        question_(backend.driver, backend.answers),
        timer_(backend.patience, [this] { strand_.Post([this] { OnLate(); }); }),
        intake_(std::move(intake)) {
    absl::StatusOr<Connections::Visit> visit = backend.connections.Enter(CallerOf(*context), who);
    if (!visit.ok()) {
      End(visit.status());
      return;
    }
    visit_.emplace(*std::move(visit));
    intake_->ComesFrom(visit_->worker());
    timer_.Start(backend.waits.first_message);
    this->StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    timer_.Stop();
    strand_.Post([this, ok] { ok ? OnMessage() : OnEnd(); });
  }
  void OnCancel() override { question_.GiveUp(); }
  void OnDone() override {
    timer_.Close();
    strand_.Post([this] { delete this; });
  }

 private:
  // All of this on the strand.

  void OnMessage() {
    if (ended_) return;
    began_ = true;
    if (absl::Status status = intake_->Take(message_); !status.ok()) return End(status);
    timer_.Start(backend_.waits.idle);
    this->StartRead(&message_);
  }

  void OnEnd() {
    if (ended_) return;
    if (context_->IsCancelled()) return End(Left());
    if (absl::Status status = intake_->Complete(); !status.ok()) return End(status);
    // A connection that broke looks like an end at first; by now, an fsync later, it is known.
    if (context_->IsCancelled()) return End(Left());
    question_.Ask(intake_->Release(), [this](Question::Answer answer) {
      strand_.Post([this, answer = std::move(answer)]() mutable {
        if (answer.ok()) SetResponse(*std::move(answer), response_);
        End(answer.status());
      });
    });
  }

  void OnLate() {
    if (ended_ || !timer_.due()) return;
    End(began_ ? StreamIdle(backend_.waits.idle) : FirstMessageLate(backend_.waits.first_message));
  }

  // A read may still be under way: it ends with the stream.
  void End(const absl::Status& status) {
    ended_ = true;
    timer_.Stop();
    intake_.reset();
    this->Finish(ToGrpc(status));
  }

  static absl::Status Left() { return absl::CancelledError("the client left in mid-upload"); }

  const Attendance::Token here_;
  Backend& backend_;
  grpc::CallbackServerContext* const context_;
  Response* const response_;
  Strand strand_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  Patience::Timer timer_;
  Message message_;
  // The strand alone:
  std::unique_ptr<Intake<Message>> intake_;
  bool began_ = false;
  bool ended_ = false;
};

}  // namespace lorad::server
