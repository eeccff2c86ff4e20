#include "worker/link/channel.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace lorad::worker {
namespace {

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Credentials* credentials) {
  if (credentials == nullptr) return grpc::InsecureChannelCredentials();
  const storage::WorkerBundle bundle = credentials->bundle();
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = bundle.authority;
  options.pem_private_key = bundle.key;
  options.pem_cert_chain = bundle.certificate;
  return grpc::SslCredentials(options);
}

absl::Status With(const absl::Status& status, const std::string& reason, const std::string& words) {
  return absl::Status(status.code(),
                      absl::StrCat(reason, ": ", words, " (", std::string(status.message()), ")"));
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& coordinator,
                                           const Credentials* credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveWaitMs);
  arguments.SetMaxReceiveMessageSize(-1);  // a window is as large as its jobs' batches
  // Its certificate says who it is, whatever address it is reached at.
  if (credentials != nullptr) arguments.SetSslTargetNameOverride(storage::kCoordinatorName);
  return grpc::CreateCustomChannel(coordinator, ChannelCredentialsOf(credentials), arguments);
}

absl::Status ExplainTls(const absl::Status& status, const Credentials* credentials) {
  if (!absl::IsUnavailable(status)) return status;
  const std::string said(status.message());
  if (credentials == nullptr) {
    // What had been written decides which of the two it is.
    const bool closed = absl::StrContains(said, "failed to connect") &&
                        (absl::StrContains(said, "Socket closed") ||
                         absl::StrContains(said, "Connection reset by peer"));
    return !closed ? status
                   : With(status, "COORDINATOR_WITH_TLS",
                          "who listens there closes connections without TLS, as a coordinator's "
                          "--worker-listen does: give this worker's bundle with --credentials");
  }
  if (absl::StrContains(said, "certificate verify failed")) {
    const storage::WorkerBundle bundle = credentials->bundle();
    return With(
        status, "COORDINATOR_OF_ANOTHER_AUTHORITY",
        absl::StrCat("the coordinator's certificate is not of '",
                     *storage::IssuerOf(bundle.certificate),
                     "', as this bundle is, or does not hold at ", storage::TimeText(absl::Now()),
                     ", which it is here: `lorad auth worker ", bundle.worker,
                     "` there makes a bundle of its authority; or set the "
                     "clock that is wrong"));
  }
  if (absl::StrContains(said, "wrong version number") ||
      absl::StrContains(said, "packet length too long")) {
    return With(status, "COORDINATOR_WITHOUT_TLS",
                "who listens there speaks no TLS: give the address of its --worker-listen");
  }
  return status;
}

bool IsLoopback(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host == "localhost") return true;
  if (absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  }
  in_addr v4;
  in6_addr v6;
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return (ntohl(v4.s_addr) >> 24) == 127;
  return inet_pton(AF_INET6, host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

}  // namespace lorad::worker
