// A call with one answer, without a thread that waits for it.
#pragma once

#include <grpcpp/support/server_callback.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "server/calls/backend.h"
#include "server/calls/question.h"

namespace lorad::server {

// Belongs to itself, and goes when gRPC is done with it. It takes one step after the other; each is
// the last act of the step before, for the next one may be over before it returns. Steps of a call
// that was refused or ended at its beginning do nothing.
class UnaryCall final : public grpc::ServerUnaryReactor {
 public:
  // Refuses who may not speak.
  UnaryCall(Backend& backend, grpc::CallbackServerContext* context,
            Connections::Who who = Connections::Who::kClient);

  // Who calls, by its certificate; "" = somebody of this host, or nobody who may.
  std::string worker() const { return visit_ ? visit_->worker() : ""; }

  // The last step.
  UnaryCall* End(const absl::Status& status);

  // Asks the driver. `then` is called on backend.answers' thread.
  UnaryCall* Ask(Request request, std::function<void(Question::Answer)> then);
  UnaryCall* AskAll(std::vector<Request> requests,
                    std::function<void(std::vector<Question::Answer>)> then);
  // Calls `work` on one of backend.reads' threads.
  UnaryCall* OnReads(std::function<void()> work);

  // Ends with what the driver answers.
  template <class T>
  UnaryCall* Relay(Request request, T* response) {
    return Ask(std::move(request), [this, response](Question::Answer answer) {
      if (answer.ok()) *response = std::get<T>(*std::move(answer));
      End(answer.status());
    });
  }
  UnaryCall* Relay(Request request);  // where that is empty

  // Ends with what `read` returns, called on one of backend.reads' threads.
  template <class T>
  UnaryCall* Read(T* response, std::function<absl::StatusOr<T>()> read) {
    return OnReads([this, response, read = std::move(read)] {
      absl::StatusOr<T> result = read();
      if (result.ok()) *response = *std::move(result);
      End(result.status());
    });
  }

  void OnCancel() override { question_.GiveUp(); }
  void OnDone() override { delete this; }

 private:
  const Attendance::Token here_;
  Backend& backend_;
  Question question_;
  std::optional<Connections::Visit> visit_;
  bool ended_ = false;
};

}  // namespace lorad::server
