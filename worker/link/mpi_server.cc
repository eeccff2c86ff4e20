#include "worker/link/mpi_server.h"

#include <grpcpp/grpcpp.h>

#include <chrono>

#include "lorad/worker/v1/worker.grpc.pb.h"
#include "worker/link/channel.h"
#include "worker/link/rpc_status.h"

namespace lorad::worker {
namespace {

constexpr std::chrono::seconds kCall(2);

}  // namespace

absl::StatusOr<std::string> FindMpiServer(const std::string& coordinator,
                                          const Credentials* credentials, int64_t epoch,
                                          const std::string& silent) {
  v1::FindMpiServerRequest request;
  request.set_epoch(epoch);
  request.set_silent_uri(silent);
  v1::FindMpiServerResponse response;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + kCall);
  const auto stub = v1::Coordinator::NewStub(MakeChannel(coordinator, credentials));
  const absl::Status called = FromRpc(stub->FindMpiServer(&context, request, &response));
  if (!called.ok()) return ExplainTls(called, credentials);
  return response.uri();
}

}  // namespace lorad::worker
