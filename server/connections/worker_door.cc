#include "server/connections/worker_door.h"

#include <grpcpp/security/auth_metadata_processor.h>

#include <string>
#include <string_view>

namespace lorad::server {
namespace {

constexpr std::string_view kServed = "/lorad.worker.v1.Coordinator/";

class WorkersMethods final : public grpc::AuthMetadataProcessor {
 public:
  bool IsBlocking() const override { return false; }

  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext*, OutputMetadata*,
                       OutputMetadata*) override {
    const auto path = metadata.find(":path");
    if (path != metadata.end() && path->second.starts_with(kServed.data())) {
      return grpc::Status::OK;
    }
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED,
                        "NOT_SERVED_HERE: this port is for workers, and serves lorad.worker.v1 "
                        "alone: clients go to the daemon's --listen address");
  }
};

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> WorkerDoorCredentials(
    const storage::Authority& authority) {
  const std::string key = storage::MakeKey();
  const absl::StatusOr<std::string> request = storage::MakeRequest(key);
  if (!request.ok()) return request.status();
  const absl::StatusOr<std::string> certificate =
      authority.SignCoordinator(*request, authority.validity());
  if (!certificate.ok()) return certificate.status();
  grpc::SslServerCredentialsOptions options(GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_BUT_DONT_VERIFY);
  options.pem_root_certs = authority.certificate();
  options.pem_key_cert_pairs.push_back({key, *certificate});
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::SslServerCredentials(options);
  credentials->SetAuthMetadataProcessor(std::make_shared<WorkersMethods>());
  return credentials;
}

}  // namespace lorad::server
