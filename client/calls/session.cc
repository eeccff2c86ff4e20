#include "client/calls/session.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "client/calls/error.h"

namespace lorad::client {

const std::shared_ptr<grpc::Channel>& Session::channel() {
  if (channel_ != nullptr) return channel_;
  grpc::ChannelArguments arguments;
  // A page of 1000 jobs stays far below; gRPC's own limit of 4 MiB does not leave room for long
  // labels.
  arguments.SetMaxReceiveMessageSize(64 << 20);
  // A page of a list goes out at once instead of waiting for windows of 64 KiB.
  arguments.SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 4 << 20);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  // A daemon that is there but answers nothing is noticed in a call that would wait for ever.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // One that was started again is found within about so long.
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2'000);
  channel_ = grpc::CreateCustomChannel(server, grpc::InsecureChannelCredentials(), arguments);
  return channel_;
}

absl::Status Session::FromRpc(const grpc::Status& status) const {
  return client::FromRpc(status, server);
}

void SetDeadline(grpc::ClientContext& context, int seconds) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(seconds));
}

}  // namespace lorad::client
