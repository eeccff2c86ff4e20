// The services of lorad.v1 and lorad.worker.v1 (proto/lorad). Each checks what a client sent, asks
// the driver, and says what came of it; none keeps state of its own. `backend` must outlive them.
#pragma once

#include <memory>

namespace grpc {
class CallbackServerContext;
class Service;
template <class Response>
class ServerWriteReactor;
}  // namespace grpc

namespace lorad::v1 {
class GenerateRequest;
class GenerateResponse;
}  // namespace lorad::v1

namespace lorad::server {

class AskedModels;
struct Backend;

std::unique_ptr<grpc::Service> MakeAdaptersService(Backend& backend);
// Its call Generate, which belongs to itself (generate_stream.cc).
grpc::ServerWriteReactor<v1::GenerateResponse>* NewGenerateStream(
    Backend& backend, AskedModels& models, grpc::CallbackServerContext* context,
    const v1::GenerateRequest& request);
std::unique_ptr<grpc::Service> MakeCheckpointsService(Backend& backend);
std::unique_ptr<grpc::Service> MakeClusterService(Backend& backend);
std::unique_ptr<grpc::Service> MakeDatasetsService(Backend& backend);
std::unique_ptr<grpc::Service> MakeJobsService(Backend& backend);
std::unique_ptr<grpc::Service> MakeModelsService(Backend& backend);
// lorad.worker.v1: the workers' side.
std::unique_ptr<grpc::Service> MakeCoordinatorService(Backend& backend);

}  // namespace lorad::server
