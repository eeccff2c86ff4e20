#include "worker/mpi/listener.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "spdlog/spdlog.h"
#include "worker/mpi/helper.h"
#include "worker/transport/handshake.h"

namespace lorad::worker {
namespace {

using std::chrono::milliseconds;

// What a helper needs to tell the others that its stage ends.
constexpr std::chrono::seconds kFarewellAtMost{2};
constexpr int kBetweenQuestionsMs = 100;
constexpr char kNamePrefix[] = "lorad-";

// Nobody guesses it, and no two listeners of a site have the same.
std::string NewName() {
  char bytes[16];
  (void)!getrandom(bytes, sizeof(bytes), 0);
  return absl::StrCat(kNamePrefix, absl::BytesToHexString(std::string(bytes, sizeof(bytes))));
}

absl::Status CheckNames(const std::vector<std::string>& endpoints) {
  for (size_t stage = 0; stage < endpoints.size(); ++stage) {
    if (absl::StartsWith(endpoints[stage], kNamePrefix)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("stage ", stage, " is reached at ", endpoints[stage],
                     ", and this one over MPI: start all workers with the same --transport"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> AwaitServer(const MpiOptions& options, int64_t epoch, Deadline deadline,
                                        const WakeUp& wake_up) {
  while (true) {
    auto server = options.find_server(epoch, "");
    if (server.ok() || !absl::IsUnavailable(server.status())) return server;
    if (std::chrono::steady_clock::now() > deadline) return server.status();
    pollfd fd = {wake_up.fd(), POLLIN, 0};
    if (poll(&fd, 1, kBetweenQuestionsMs) > 0) return absl::CancelledError("interrupted");
  }
}

// The connections towards earlier stages: ours, and their other ends for the helper, in the order
// in which it takes them.
struct Dialled {
  FileDescriptor tensors, notes;
  std::vector<FileDescriptor> inherited;
};

absl::StatusOr<Dialled> Pair() {
  Dialled dialled;
  for (FileDescriptor* ours : {&dialled.tensors, &dialled.notes}) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
      return absl::UnavailableError("cannot open a socket: no descriptor is left");
    }
    *ours = FileDescriptor(ends[0]);
    dialled.inherited.emplace_back(ends[1]);
  }
  return dialled;
}

// Ends the helper. `why` is the handshake's error: CANCELLED where the helper `had_ended`, or
// somebody interrupts.
absl::Status WhyNotJoined(const absl::Status& why, bool had_ended, Helper* helper) {
  const bool by_itself = helper->End(kFarewellAtMost);
  const absl::Status end = helper->status();
  if (absl::IsFailedPrecondition(why)) return why;  // the other stage refuses
  if (absl::IsCancelled(why) && !had_ended) return why;
  if (by_itself && !end.ok()) return end;
  if (had_ended) return absl::UnavailableError("a stage of the group has gone, or was refused");
  return why;
}

}  // namespace

MpiListener::MpiListener(Listening listening, MpiOptions options)
    : listening_(std::move(listening)), options_(std::move(options)), endpoint_(NewName()) {}

absl::StatusOr<std::unique_ptr<StageListener>> MpiListener::Open(MpiOptions options) {
  auto listening = Listen("127.0.0.1");
  if (!listening.ok()) return listening.status();
  return std::unique_ptr<StageListener>(new MpiListener(*std::move(listening), std::move(options)));
}

absl::StatusOr<std::unique_ptr<Transport>> MpiListener::Join(
    const StageIdentity& me, const std::vector<std::string>& endpoints) {
  absl::Status fits = CheckStage(me, endpoints);
  if (fits.ok()) fits = CheckNames(endpoints);
  if (!fits.ok()) return fits;
  const Deadline deadline =
      std::chrono::steady_clock::now() + milliseconds(options_.connections.join_ms);
  const auto server = AwaitServer(options_, me.epoch, deadline, *wake_up_);
  if (!server.ok()) return server.status();
  auto joined = JoinAt(*server, deadline, me, endpoints);
  // Whether it is the server that is silent, or another stage, cannot be told from here. A new one
  // harms nobody.
  if (absl::IsDeadlineExceeded(joined.status())) {
    const absl::Status told = options_.find_server(me.epoch, *server).status();
    if (!told.ok()) spdlog::info("after a silent ompi-server: {}", std::string(told.message()));
  }
  return joined;
}

absl::StatusOr<std::unique_ptr<Transport>> MpiListener::JoinAt(
    const std::string& server, Deadline deadline, const StageIdentity& me,
    const std::vector<std::string>& endpoints) {
  auto dialled = Pair();
  if (!dialled.ok()) return dialled.status();
  SocketsOptions connections = options_.connections;
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - std::chrono::steady_clock::now());
  connections.join_ms = std::max<int64_t>(left.count(), 0);
  HelperCommand command{.arguments = {options_.helper, absl::StrCat(me.stage),
                                      absl::StrCat("127.0.0.1:", listening_.port),
                                      absl::StrCat(connections.silence_ms)},
                        .environment = HelperEnvironment(server),
                        .inherited = std::move(dialled->inherited)};
  command.arguments.insert(command.arguments.end(), endpoints.begin(), endpoints.end());
  auto started = Helper::Start(std::move(command), [wake_up = wake_up_] { wake_up->Set(); });
  if (!started.ok()) return started.status();
  // Shared, for std::function copies.
  const std::shared_ptr<Helper> helper = *std::move(started);
  const auto dial = [&](v1::StageHello::Purpose purpose, int,
                        Deadline) -> absl::StatusOr<FileDescriptor> {
    return std::move(purpose == v1::StageHello::TENSORS ? dialled->tensors : dialled->notes);
  };
  auto opened = Shake(listening_.socket, me, endpoints, dial, connections, *wake_up_);
  if (!opened.ok()) {
    const bool had_ended = helper->ended();  // without its connections it ends too
    *dialled = {};
    return WhyNotJoined(opened.status(), had_ended, helper.get());
  }
  return TransportOver(*std::move(opened), me, connections,
                       [helper] { helper->End(kFarewellAtMost); });
}

}  // namespace lorad::worker
