#include <grpcpp/grpcpp.h>

#include <string>
#include <variant>
#include <vector>

#include "lorad/v1/cluster.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/services.h"
#include "server/services/unary_call.h"
#include "storage/files.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;

class ClusterService final : public v1::Cluster::CallbackService {
 public:
  explicit ClusterService(Backend& backend) : backend_(backend) {}

  grpc::ServerUnaryReactor* GetCluster(Context* context, const v1::GetClusterRequest* request,
                                       v1::ClusterStatus* response) override {
    auto* call = new UnaryCall(backend_, context);
    return call->Ask(*request, [this, call, response](Question::Answer answer) {
      if (!answer.ok()) return static_cast<void>(call->End(answer.status()));
      *response = std::get<v1::ClusterStatus>(*std::move(answer));
      call->OnReads([this, call, response] {
        CountLost(backend_.driver.data_dir().Full("lost"), response);
        call->End(absl::OkStatus());
      });
    });
  }

  grpc::ServerUnaryReactor* ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

 private:
  // Files below the path. What goes, or cannot be read, while they are counted, is left out.
  void CountLost(const std::string& path, v1::ClusterStatus* status) {
    storage::Files& files = backend_.driver.files();
    if (!files.IsDirectory(path)) {
      const absl::StatusOr<uint64_t> bytes = files.Size(path);
      if (!bytes.ok()) return;
      status->set_lost_files(status->lost_files() + 1);
      status->set_lost_bytes(status->lost_bytes() + static_cast<int64_t>(*bytes));
      return;
    }
    const absl::StatusOr<std::vector<std::string>> names = files.List(path);
    if (!names.ok()) return;
    for (const std::string& name : *names) CountLost(storage::JoinPath(path, name), status);
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(Backend& backend) {
  return std::make_unique<ClusterService>(backend);
}

}  // namespace lorad::server
