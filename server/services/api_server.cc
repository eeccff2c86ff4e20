#include "server/services/api_server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/service_type.h>
#include <grpcpp/resource_quota.h>
#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/time/clock.h"
#include "server/calls/backend.h"
#include "server/calls/malformed_requests.h"
#include "server/connections/listener.h"
#include "server/connections/worker_door.h"
#include "server/errors/errors.h"
#include "server/services/services.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int kKeepaliveMs = 20'000;        // a connection that says nothing is asked
constexpr int kKeepaliveWaitMs = 10'000;    // and ends without an answer
constexpr int kHandshakeMs = 10'000;        // TLS, and the first frames
constexpr int kConnectionIdleMs = 300'000;  // without a call
constexpr int kUnreadBytesMax = 4 << 20;    // of a stream

using Acceptor = grpc::experimental::ExternalConnectionAcceptor;
using Builder = grpc::ServerBuilder;

ConnectionLimits LimitsOf(const ApiServerOptions& options) {
  ConnectionLimits limits;
  limits.total = options.connections_max > 0 ? options.connections_max : ConnectionsMax();
  limits.for_workers = std::min(kWorkerConnectionsMax, limits.total / 4);
  limits.allowed = {0, geteuid()};
  limits.allowed.insert(options.allowed_users.begin(), options.allowed_users.end());
  if (options.authority != nullptr) {
    limits.worker_of = [authority = options.authority,
                        clock = options.wall_clock](const std::string& certificate) {
      return storage::WorkerOf(certificate, authority->certificate(), clock());
    };
  }
  return limits;
}

void SetChannel(Builder& builder) {
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kStreamsMax);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveWaitMs);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, kConnectionIdleMs);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // Workers ask every few seconds whether their coordinator still lives.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  // The bytes that a sender may have under way before they are read: enough for 100 MB/s over 40
  // ms. A window that gRPC widens as it sees fit would take the more memory the slower our disk is.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, kUnreadBytesMax);
  builder.SetMaxReceiveMessageSize(kMessageBytesMax);
  builder.SetMaxSendMessageSize(-1);  // windows are as large as they are
  // Reflection alone takes a thread for each of its calls.
  builder.SetResourceQuota(grpc::ResourceQuota("lorad").SetMaxThreads(kReflectionThreadsMax));
}

// A socket of ours whose connections are handed to gRPC.
struct Entrance {
  ListenAddress address;
  std::unique_ptr<Acceptor> acceptor;  // outlives the server
  std::unique_ptr<Listener> listener;  // ends before the server does

  // Before the server is built.
  absl::Status Open(Door door, Connections& connections,
                    std::shared_ptr<grpc::ServerCredentials> credentials, Builder& builder) {
    absl::StatusOr<std::unique_ptr<Listener>> opened = Listener::Open(&address, door, connections);
    if (!opened.ok()) return opened.status();
    listener = *std::move(opened);
    acceptor = builder.experimental().AddExternalConnectionAcceptor(
        Builder::experimental_type::ExternalConnectionType::FROM_FD, std::move(credentials));
    return absl::OkStatus();
  }
  // Once it serves.
  void Start() {
    listener->Start([this](int fd) {
      Acceptor::NewConnectionParameters connection;
      connection.fd = fd;
      acceptor->HandleNewConnection(&connection);
    });
  }
};

class GrpcApiServer final : public ApiServer {
 public:
  GrpcApiServer(const ApiServerOptions& options, Driver& driver)
      : local_{options.listen, nullptr, nullptr},
        workers_{options.worker_listen, nullptr, nullptr},
        backend_(driver, options.model_roots, options.own_workers,
                 {options.first_message_wait, options.idle_wait, options.bookmark_wait},
                 LimitsOf(options), {options.authority, options.wall_clock},
                 options.find_mpi_server) {
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
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
    Builder builder;
    SetChannel(builder);
    absl::Status status =
        local_.Open(Door::kLocal, backend_.connections, grpc::InsecureServerCredentials(), builder);
    if (status.ok() && backend_.site.authority != nullptr) status = OpenWorkersDoor(builder);
    if (!status.ok()) return status;
    std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
    creators.push_back(AnswerMalformedRequests());
    builder.experimental().SetInterceptorCreators(std::move(creators));
    for (const auto& service : services_) builder.RegisterService(service.get());
    polled_ = builder.AddCompletionQueue();
    server_ = builder.BuildAndStart();
    if (server_ == nullptr) {
      polled_->Shutdown();
      return Error(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   "cannot serve on " + local_.address.ToText());
    }
    poller_ = std::thread([this] {
      void* tag;
      bool ok;
      while (polled_->Next(&tag, &ok)) {
      }
    });
    local_.Start();
    if (workers_.listener != nullptr) workers_.Start();
    return absl::OkStatus();
  }

  const ListenAddress& address() const override { return local_.address; }
  const ListenAddress& worker_address() const override { return workers_.address; }

  void SetWritable(bool writable) override {
    if (backend_.stopping) return;
    for (const char* service : {"Jobs", "Datasets", "Adapters", "Models"}) {
      server_->GetHealthCheckService()->SetServingStatus(std::string("lorad.v1.") + service,
                                                         writable);
    }
  }

  void BeginStop() override {
    backend_.stopping = true;
    server_->GetHealthCheckService()->SetServingStatus(false);
    backend_.driver.revisions().Shutdown();
  }

  void Stop(absl::Time deadline) override {
    local_.listener.reset();
    workers_.listener.reset();
    server_->Shutdown(absl::ToChronoTime(deadline));
    server_->Wait();
    backend_.calls.WaitUntilEmpty();
    if (!poller_.joinable()) return;
    polled_->Shutdown();
    poller_.join();
  }

 private:
  absl::Status OpenWorkersDoor(Builder& builder) {
    auto credentials = WorkerDoorCredentials(*backend_.site.authority);
    if (!credentials.ok()) return credentials.status();
    return workers_.Open(Door::kWorkers, backend_.connections, *std::move(credentials), builder);
  }

  Entrance local_;
  Entrance workers_;  // of other hosts; closed where the site has no authority
  Backend backend_;
  std::vector<std::unique_ptr<grpc::Service>> services_;
  // A queue that nothing is put into, so that there is always a thread that waits for the sockets.
  // With callback services gRPC 1.51 leaves that to threads of its own, which sleep 100 ms of every
  // idle 1100.
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
