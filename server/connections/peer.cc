#include "server/connections/peer.h"

#include <arpa/inet.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr uint32_t kAllStates = 0xffffffff;

struct DiagRequest {
  nlmsghdr header = {};
  inet_diag_req_v2 socket = {};
};

std::string ToText(const sockaddr_storage& address) {
  char text[INET6_ADDRSTRLEN] = {};
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v4.sin_port));
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
  return absl::StrCat("[", text, "]:", ntohs(v6.sin6_port));
}

// One end of a connection, as sock_diag wants it.
void SetEnd(const sockaddr_storage& address, __be16* port, __be32* host) {
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    *port = v4.sin_port;
    std::memcpy(host, &v4.sin_addr, sizeof(v4.sin_addr));
  } else {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
    *port = v6.sin6_port;
    std::memcpy(host, &v6.sin6_addr, sizeof(v6.sin6_addr));
  }
}

absl::Status CannotAsk(const char* what) {
  return Error(absl::StatusCode::kUnavailable, "PEER_CHECK_UNAVAILABLE",
               absl::StrCat("cannot ask the kernel who connects (", what, ": ", strerror(errno),
                            "): it must offer NETLINK_SOCK_DIAG for TCP (CONFIG_INET_DIAG)"));
}

}  // namespace

absl::StatusOr<PeerFinder> PeerFinder::Open() {
  const int netlink = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (netlink < 0) return CannotAsk("socket");
  return PeerFinder(netlink);
}

PeerFinder::PeerFinder(PeerFinder&& other) noexcept
    : netlink_(std::exchange(other.netlink_, -1)), sequence_(other.sequence_) {}

PeerFinder::~PeerFinder() {
  if (netlink_ >= 0) close(netlink_);
}

absl::StatusOr<PeerFinder::Peer> PeerFinder::Find(int fd) {
  sockaddr_storage ours = {}, theirs = {};
  socklen_t ours_bytes = sizeof(ours), theirs_bytes = sizeof(theirs);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&ours), &ours_bytes) != 0 ||
      getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &theirs_bytes) != 0) {
    return absl::NotFoundError("the connection is gone");
  }
  DiagRequest request;
  request.header.nlmsg_len = sizeof(request);
  request.header.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  request.header.nlmsg_flags = NLM_F_REQUEST;
  request.header.nlmsg_seq = ++sequence_;
  request.socket.sdiag_family = static_cast<__u8>(theirs.ss_family);
  request.socket.sdiag_protocol = IPPROTO_TCP;
  request.socket.idiag_states = kAllStates;
  // The socket looked for is the peer's: its own end comes first.
  SetEnd(theirs, &request.socket.id.idiag_sport, request.socket.id.idiag_src);
  SetEnd(ours, &request.socket.id.idiag_dport, request.socket.id.idiag_dst);
  request.socket.id.idiag_cookie[0] = request.socket.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;
  const absl::StatusOr<uid_t> uid = Ask(&request, sizeof(request));
  if (!uid.ok()) return uid.status();
  return Peer{ToText(theirs), *uid};
}

absl::StatusOr<uid_t> PeerFinder::Ask(const void* request, size_t bytes) {
  if (send(netlink_, request, bytes, 0) != static_cast<ssize_t>(bytes)) return CannotAsk("send");
  alignas(nlmsghdr) char buffer[8192];
  for (;;) {
    const ssize_t received = recv(netlink_, buffer, sizeof(buffer), 0);
    if (received < 0 && errno == EINTR) continue;
    if (received < static_cast<ssize_t>(sizeof(nlmsghdr))) return CannotAsk("recv");
    const auto* header = reinterpret_cast<const nlmsghdr*>(buffer);
    if (header->nlmsg_seq != sequence_) continue;  // of an answer that was not waited for
    if (header->nlmsg_type != SOCK_DIAG_BY_FAMILY) {
      return absl::NotFoundError("no socket of this machine is at the other end");
    }
    return reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(header))->idiag_uid;
  }
}

std::string AddressOfPeer(int fd) {
  sockaddr_storage theirs = {};
  socklen_t bytes = sizeof(theirs);
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&theirs), &bytes) != 0) return "";
  return ToText(theirs);
}

}  // namespace lorad::server
