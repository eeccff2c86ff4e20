#include "server/calls/unary_call.h"

#include <grpcpp/server_context.h>

#include "server/errors/grpc_status.h"

namespace lorad::server {

UnaryCall::UnaryCall(Backend& backend, grpc::CallbackServerContext* context, Connections::Who who)
    : here_(backend.calls), backend_(backend), question_(backend.driver, backend.answers) {
  absl::StatusOr<Connections::Visit> visit = backend.connections.Enter(CallerOf(*context), who);
  if (visit.ok()) {
    visit_.emplace(*std::move(visit));
  } else {
    End(visit.status());
  }
}

UnaryCall* UnaryCall::End(const absl::Status& status) {
  if (ended_) return this;
  ended_ = true;
  Finish(ToGrpc(status));
  return this;
}

UnaryCall* UnaryCall::Ask(Request request, std::function<void(Question::Answer)> then) {
  if (!ended_) question_.Ask(std::move(request), std::move(then));
  return this;
}

UnaryCall* UnaryCall::AskAll(std::vector<Request> requests,
                             std::function<void(std::vector<Question::Answer>)> then) {
  if (!ended_) question_.AskAll(std::move(requests), std::move(then));
  return this;
}

UnaryCall* UnaryCall::OnReads(std::function<void()> work) {
  if (!ended_) backend_.reads.Add(std::move(work));
  return this;
}

UnaryCall* UnaryCall::Relay(Request request) {
  return Ask(std::move(request), [this](Question::Answer answer) { End(answer.status()); });
}

}  // namespace lorad::server
