#include <grpcpp/grpcpp.h>

#include "lorad/v1/cluster.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/services.h"
#include "server/services/unary_call.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  explicit ClusterService(Backend& backend) : backend_(backend) {}

  grpc::ServerUnaryReactor* GetCluster(Context* context, const v1::GetClusterRequest* request,
                                       v1::ClusterStatus* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(Backend& backend) {
  return std::make_unique<ClusterService>(backend);
}

}  // namespace lorad::server
