#include "server/services/api_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>

#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "server/errors/errors.h"
#include "server/services/backend.h"
#include "server/services/services.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

class GrpcApiServer final : public ApiServer {
 public:
  GrpcApiServer(const ApiServerOptions& options, Driver& driver)
      : address_(options.listen), backend_(driver, options.model_roots, options.own_workers) {
    services_.push_back(MakeJobsService(backend_));
    services_.push_back(MakeDatasetsService(backend_));
    services_.push_back(MakeModelsService(backend_));
    services_.push_back(MakeAdaptersService(backend_));
    services_.push_back(MakeCheckpointsService(backend_));
    services_.push_back(MakeClusterService(backend_));
    services_.push_back(MakeCoordinatorService(backend_));
  }

  ~GrpcApiServer() override {
    if (server_ == nullptr) return;
    BeginStop();
    Stop(absl::Now());
  }

  absl::Status Serve() {
    if (absl::Status status = CheckPortFree(address_); !status.ok()) return status;
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    grpc::ServerBuilder builder;
    // A second daemon must not get every other connection.
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
    // Workers ask every few seconds whether their coordinator still lives.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.SetMaxReceiveMessageSize(kMessageBytesMax);
    builder.SetMaxSendMessageSize(-1);  // windows are as large as they are
    builder.SetResourceQuota(grpc::ResourceQuota("lorad").SetMaxThreads(kThreadsMax));
    int port = 0;
    builder.AddListeningPort(address_.ToText(), grpc::InsecureServerCredentials(), &port);
    for (const auto& service : services_) builder.RegisterService(service.get());
    polled_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr || port == 0) {
      server_ = nullptr;
      polled_->Shutdown();
      if (absl::Status status = CheckPortFree(address_); !status.ok()) return status;
      return Error(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   "cannot listen on " + address_.ToText());
    }
    address_.port = port;
    poller_ = std::thread([this] {
      void* tag;
      bool ok;
      while (polled_->Next(&tag, &ok)) {
      }
    });
    return absl::OkStatus();
  }

  const ListenAddress& address() const override { return address_; }

  void SetWritable(bool writable) override {
    if (backend_.stopping) return;
    for (const char* service : {"Jobs", "Datasets", "Adapters", "Models"}) {
      server_->GetHealthCheckService()->SetServingStatus(std::string("lorad.v1.") + service,
                                                         writable);
    }
  }

  void BeginStop() override {
    server_->GetHealthCheckService()->SetServingStatus(false);
    backend_.stopping = true;
    backend_.driver.revisions().Shutdown();
  }

  void Stop(absl::Time deadline) override {
    server_->Shutdown(absl::ToChronoTime(deadline));
    server_->Wait();
    if (!poller_.joinable()) return;
    polled_->Shutdown();
    poller_.join();
  }

 private:
  ListenAddress address_;
  Backend backend_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  // A queue that nothing is put into, so that there is always a thread that waits for the sockets.
  // With a callback service (health, the workers' stream) gRPC 1.51 leaves that to threads of its
  // own, which sleep 100 ms of every idle 1100.
  std::unique_ptr<grpc::ServerCompletionQueue> polled_;
  std::thread poller_;
  std::unique_ptr<grpc::Server> server_;  // before the services go
};

}  // namespace

absl::StatusOr<std::unique_ptr<ApiServer>> ApiServer::Start(const ApiServerOptions& options,
                                                            Driver& driver) {
  auto server = std::make_unique<GrpcApiServer>(options, driver);
  if (absl::Status status = server->Serve(); !status.ok()) return status;
  return server;
}

}  // namespace lorad::server
