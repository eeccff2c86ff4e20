#include "server/calls/malformed_requests.h"

#include "server/errors/errors.h"
#include "server/errors/grpc_status.h"

namespace lorad::server {
namespace {

namespace grpcx = grpc::experimental;

// No answer of ours has this code, so it is gRPC's own.
bool IsGrpcs(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNIMPLEMENTED && status.error_message().empty();
}

class Answer final : public grpcx::Interceptor {
 public:
  void Intercept(grpcx::InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(grpcx::InterceptionHookPoints::PRE_SEND_STATUS) &&
        IsGrpcs(methods->GetSendStatus())) {
      methods->ModifySendStatus(ToGrpc(
          Error(absl::StatusCode::kInvalidArgument, "REQUEST_MALFORMED",
                "the request is no message of this method's type, or a string in it is not UTF-8: "
                "send what proto/ says")));
    }
    methods->Proceed();
  }
};

class Factory final : public grpcx::ServerInterceptorFactoryInterface {
 public:
  grpcx::Interceptor* CreateServerInterceptor(grpcx::ServerRpcInfo* call) override {
    switch (call->type()) {
      case grpcx::ServerRpcInfo::Type::UNARY:
      case grpcx::ServerRpcInfo::Type::SERVER_STREAMING:
        return new Answer;
      default:
        return nullptr;  // a method that does not exist is one of these
    }
  }
};

}  // namespace

std::unique_ptr<grpcx::ServerInterceptorFactoryInterface> AnswerMalformedRequests() {
  return std::make_unique<Factory>();
}

}  // namespace lorad::server
