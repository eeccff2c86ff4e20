#include "server/connections/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/server_context.h>

#include "absl/strings/str_replace.h"

namespace lorad::server {
namespace {

std::string Property(const grpc::AuthContext& context, const char* name) {
  const std::vector<grpc::string_ref> values = context.FindPropertyValues(name);
  return values.empty() ? "" : std::string(values[0].data(), values[0].size());
}

// "ipv4:127.0.0.1:40000", "ipv6:%5B::1%5D:40000" as an address.
std::string AddressOf(const std::string& grpc_peer) {
  return absl::StrReplaceAll(grpc_peer.substr(grpc_peer.find(':') + 1),
                             {{"%5B", "["}, {"%5D", "]"}});
}

}  // namespace

Caller CallerOf(const grpc::ServerContextBase& context) {
  Caller caller;
  caller.address = AddressOf(context.peer());
  const auto auth = context.auth_context();
  if (auth == nullptr) return caller;
  const std::string transport = Property(*auth, GRPC_TRANSPORT_SECURITY_TYPE_PROPERTY_NAME);
  if (transport == GRPC_SSL_TRANSPORT_SECURITY_TYPE) caller.door = Door::kWorkers;
  caller.certificate = Property(*auth, GRPC_X509_PEM_CERT_PROPERTY_NAME);
  return caller;
}

}  // namespace lorad::server
