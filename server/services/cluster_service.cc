#include <grpcpp/grpcpp.h>

#include "lorad/v1/cluster.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/call.h"
#include "server/services/services.h"

namespace lorad::server {
namespace {

class ClusterService final : public v1::Cluster::Service {
 public:
  explicit ClusterService(Backend& backend) : backend_(backend) {}

  grpc::Status GetCluster(grpc::ServerContext* context, const v1::GetClusterRequest* request,
                          v1::ClusterStatus* response) override {
    return Answer(backend_.driver.Ask<v1::ClusterStatus>(*request, DeadlineOf(*context)), response);
  }

  grpc::Status ListWorkers(grpc::ServerContext* context, const v1::ListWorkersRequest* request,
                           v1::ListWorkersResponse* response) override {
    return Answer(backend_.driver.Ask<v1::ListWorkersResponse>(*request, DeadlineOf(*context)),
                  response);
  }

 private:
  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(Backend& backend) {
  return std::make_unique<ClusterService>(backend);
}

}  // namespace lorad::server
