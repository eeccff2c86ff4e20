#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

namespace lorad::worker {

// A connection is asked for a sign of life after so long without one, and given up when none came
// for so long: a coordinator may stand still for more than a minute, and no worker is to leave its
// group for that.
inline constexpr int kKeepaliveMs = 10'000;
inline constexpr int kKeepaliveWaitMs = 90'000;

// A connection of its own to the coordinator.
inline std::shared_ptr<grpc::Channel> MakeChannel(const std::string& coordinator) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveWaitMs);
  arguments.SetMaxReceiveMessageSize(-1);  // a window is as large as its jobs' batches
  return grpc::CreateCustomChannel(coordinator, grpc::InsecureChannelCredentials(), arguments);
}

}  // namespace lorad::worker
