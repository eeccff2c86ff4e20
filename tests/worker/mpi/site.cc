#include "tests/worker/mpi/site.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_split.h"
#include "worker/mpi/helper.h"

namespace lorad::worker {
namespace {

constexpr char kHelper[] = "worker/mpi/lorad-mpi";
constexpr std::chrono::seconds kServerAtMost{30};

}  // namespace

MpiSite* MpiSite::Here() {
  static const std::unique_ptr<MpiSite> site = [] {
    const auto binary = server::FindOmpiServer(absl::StrSplit(getenv("PATH"), ':'));
    std::unique_ptr<MpiSite> found;
    if (!binary.ok() || !CheckHelper(kHelper).ok()) return found;  // or built without
    found.reset(new MpiSite(*binary));
    return found;
  }();
  if (site == nullptr) WARN("skipped: no MPI");
  return site.get();
}

// Short: the names of sockets in it have at most 107 bytes.
MpiSite::MpiSite(const std::string& binary) : folder_("/tmp/lorad-site-XXXXXX") {
  if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("no folder " + folder_);
  setenv("TMPDIR", folder_.c_str(), 1);
  auto server =
      server::OmpiServer::Start({.binary = binary,
                                 .folder = folder_ + "/server",
                                 .supervision = {.backoff_first = absl::Milliseconds(100)}},
                                [](const std::string&, bool) {});
  if (!server.ok()) throw std::runtime_error(server.status().ToString());
  server_ = *std::move(server);
  AwaitServer();
}

MpiSite::~MpiSite() {
  server_.reset();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string MpiSite::AwaitServer(const std::string& but) const {
  const auto limit = std::chrono::steady_clock::now() + kServerAtMost;
  while (std::chrono::steady_clock::now() < limit) {
    const auto uri = server_->Find("");
    if (uri.ok() && *uri != but) return *uri;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  throw std::runtime_error("no ompi-server");
}

MpiOptions MpiSite::options() const {
  return {.helper = kHelper, .find_server = [this](int64_t, const std::string& silent) {
            return server_->Find(silent);
          }};
}

absl::StatusOr<std::unique_ptr<StageListener>> MpiSite::Listen() const {
  return MpiListener::Open(options());
}

Joined MpiSite::TryJoin(int stages, const SocketsOptions& connections,
                        const std::function<void(StageIdentity*)>& change) const {
  MpiOptions options = this->options();
  const int64_t join_ms = options.connections.join_ms;
  options.connections = connections;
  if (connections.join_ms == SocketsOptions().join_ms) options.connections.join_ms = join_ms;
  return worker::TryJoin(
      stages, [&] { return MpiListener::Open(options); }, change);
}

}  // namespace lorad::worker
