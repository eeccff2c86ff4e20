#include <grpcpp/grpcpp.h>

#include <string>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/unary_call.h"
#include "server/core/cluster/trace.h"
#include "server/errors/errors.h"
#include "server/services/services.h"
#include "server/validation/limits.h"
#include "server/validation/names.h"
#include "server/validation/quota.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

using Context = grpc::CallbackServerContext;
using Names = std::vector<std::string>;

constexpr int kTracedMax = 1024;  // what the core keeps

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
        CountLost(response);
        call->End(absl::OkStatus());
      });
    });
  }

  grpc::ServerUnaryReactor* ListWorkers(Context* context, const v1::ListWorkersRequest* request,
                                        v1::ListWorkersResponse* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* GetTrace(Context* context, const v1::GetTraceRequest* request,
                                     v1::Trace* response) override {
    auto* call = new UnaryCall(backend_, context);
    if (request->microbatches() < 0 || request->microbatches() > kTracedMax) {
      return call->End(InvalidFields(
          "request",
          {{"microbatches", absl::StrCat("must be from 1 to ", kTracedMax, ", or 0 for 256")}}));
    }
    return call->Ask(*request, [call, response](Question::Answer answer) {
      if (!answer.ok()) return static_cast<void>(call->End(answer.status()));
      call->OnReads([call, response, measured = std::get<MeasuredGroup>(*std::move(answer))] {
        *response = ToTrace(measured);
        call->End(absl::OkStatus());
      });
    });
  }

  grpc::ServerUnaryReactor* DrainWorker(Context* context, const v1::DrainWorkerRequest* request,
                                        v1::Worker* response) override {
    auto* call = new UnaryCall(backend_, context);
    const std::string& reason = request->reason();
    const std::string wrong =
        reason.empty() || !IsUtf8(reason)
            ? absl::StrCat("must be 1 to ", kDrainReasonBytesMax, " bytes of UTF-8")
            : CheckVisibleText(reason, kDrainReasonBytesMax);
    if (!wrong.empty()) {
      return call->End(InvalidFields(
          "request", {{"reason", absl::StrCat(wrong, ": jobs that wait, and tables, show it")}}));
    }
    return call->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* UndrainWorker(Context* context, const v1::UndrainWorkerRequest* request,
                                          v1::Worker* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* SetQuota(Context* context, const v1::SetQuotaRequest* request,
                                     v1::Quota* response) override {
    auto* call = new UnaryCall(backend_, context);
    const std::vector<FieldViolation> violations = CheckQuota(request->quota());
    if (!violations.empty()) return call->End(InvalidFields("quota", violations));
    return call->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListQuotas(Context* context, const v1::ListQuotasRequest* request,
                                       v1::ListQuotasResponse* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* DeleteQuota(Context* context, const v1::DeleteQuotaRequest* request,
                                        google::protobuf::Empty*) override {
    auto* call = new UnaryCall(backend_, context);
    const std::string wrong = CheckQuotaLabel(request->label());
    if (!wrong.empty()) return call->End(InvalidFields("request", {{"label", wrong}}));
    return call->Relay(*request);
  }

 private:
  // An adapter that goes, or cannot be read, while it is counted, is left out.
  void CountLost(v1::ClusterStatus* status) {
    const std::string lost = backend_.driver.data_dir().Full("lost");
    status->set_lost_files(std::ssize(backend_.driver.files().List(lost).value_or(Names())));
    status->set_lost_bytes(BytesBelow(lost));
  }

  int64_t BytesBelow(const std::string& path) {
    storage::Files& files = backend_.driver.files();
    if (!files.IsDirectory(path)) return static_cast<int64_t>(files.Size(path).value_or(0));
    int64_t bytes = 0;
    for (const std::string& name : files.List(path).value_or(Names())) {
      bytes += BytesBelow(storage::JoinPath(path, name));
    }
    return bytes;
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeClusterService(Backend& backend) {
  return std::make_unique<ClusterService>(backend);
}

}  // namespace lorad::server
