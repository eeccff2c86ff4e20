#include "server/connections/listener.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

namespace lorad::server {
namespace {

constexpr auto kNoDescriptor = std::chrono::milliseconds(50);
constexpr int kReportMs = 1000;  // how late a silent peer at the workers' door is reported

}  // namespace

absl::StatusOr<std::unique_ptr<Listener>> Listener::Open(ListenAddress* address, Door door,
                                                         Connections& connections) {
  std::optional<PeerFinder> finder;
  if (door == Door::kLocal) {
    absl::StatusOr<PeerFinder> opened = PeerFinder::Open();
    if (!opened.ok()) return opened.status();
    finder.emplace(*std::move(opened));
  }
  const absl::StatusOr<int> socket = OpenListeningSocket(address);
  if (!socket.ok()) return socket.status();
  const int wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  return std::unique_ptr<Listener>(new Listener(*socket, wake, std::move(finder), connections));
}

Listener::Listener(int socket, int wake, std::optional<PeerFinder> finder, Connections& connections)
    : socket_(socket), wake_(wake), finder_(std::move(finder)), connections_(connections) {}

Listener::~Listener() {
  Stop();
  close(socket_);
  close(wake_);
}

void Listener::Start(std::function<void(int fd)> on_connection) {
  on_connection_ = std::move(on_connection);
  thread_ = std::thread([this] { Run(); });
}

void Listener::Stop() {
  if (!thread_.joinable()) return;
  eventfd_write(wake_, 1);
  thread_.join();
}

void Listener::Run() {
  pollfd sources[] = {{socket_, POLLIN, 0}, {wake_, POLLIN, 0}};
  for (;;) {
    const int ready = poll(sources, 2, finder_ ? -1 : kReportMs);
    if (!finder_) connections_.ReportSilent();
    if (ready <= 0) continue;
    if (sources[1].revents != 0) return;
    const int fd = accept4(socket_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Receive(fd);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      spdlog::warn("cannot accept a connection: {}", strerror(errno));
      std::this_thread::sleep_for(kNoDescriptor);
    }
  }
}

bool Listener::Admit(int fd) {
  if (!finder_) return connections_.AdmitWorker(fd, AddressOfPeer(fd));
  const absl::StatusOr<PeerFinder::Peer> peer = finder_->Find(fd);
  return peer.ok() && connections_.Admit(fd, *peer);
}

void Listener::Receive(int fd) {
  if (!Admit(fd)) {
    close(fd);
    return;
  }
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  on_connection_(fd);
}

}  // namespace lorad::server
