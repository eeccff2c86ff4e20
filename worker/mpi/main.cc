// lorad-mpi: carries the connections of one stage's worker over MPI. The worker starts it
// (worker/mpi/helper.h) and ends it; a library that waits for ever takes nobody with it.
//
//   lorad-mpi check                                    ends with 0: the library is there
//   lorad-mpi STAGE WORKER SILENCE_MS NAME0 NAME1 ...  names of all stages (links.h)
//
// Descriptor 0 is a pipe whose end is the worker's: this process ends with it. From stage 1 on, 3
// is the worker's connection for tensors to the stage before, and 4 the one for notes to stage 0.
#include <fcntl.h>
#include <mpi.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "worker/mpi/exit_codes.h"
#include "worker/mpi/links.h"
#include "worker/mpi/progress.h"
#include "worker/mpi/relay.h"

namespace lorad::worker {
namespace {

constexpr int kTensorsFd = 3;
constexpr int kNotesFd = 4;
constexpr int kWatchMs = 100;

// Number; -1 where it is none.
int64_t Number(std::string_view text) {
  int64_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

// To begin takes 0.35 s, a name some milliseconds; with a server that is gone or stands still it
// takes for ever.
constexpr std::chrono::milliseconds kServerAtMost{8'000};

// Ends the process, whatever the main thread hangs in: when the worker has ended, when the site's
// server does not answer, and when a call of the relay has not returned for `silence_ms`. For how
// long other stages are awaited is the worker's to say.
void Watch(int worker, int64_t silence_ms, const Progress& progress) {
  using Stage = Progress::Stage;
  int64_t seen = -1;
  auto since = std::chrono::steady_clock::now();
  while (true) {
    pollfd fd = {worker, POLLIN, 0};
    if (poll(&fd, 1, kWatchMs) > 0) _exit(1);
    const auto now = std::chrono::steady_clock::now();
    const int64_t calls = progress.calls.load();
    const Stage stage = progress.stage.load();
    if (std::exchange(seen, calls) != calls || stage == Stage::kAwaitsOther) since = now;
    const bool asks = stage == Stage::kAsksServer;
    const auto most = asks ? kServerAtMost : std::chrono::milliseconds(silence_ms);
    if (now - since <= most) continue;
    std::fprintf(stderr, "a call of MPI has not returned for %lld ms\n",
                 static_cast<long long>(most.count()));
    _exit(asks ? kServerSilent : 1);
  }
}

// MPI starts a daemon of its own, which must not hold what this process was given.
int Own(int fd) {
  fcntl(fd, F_SETFD, FD_CLOEXEC);
  return fd;
}

// A launcher that binds a worker to a processor means the worker: this process would take turns with
// its arithmetic (two workers on two cores, mpirun's default: 19 s, and 15 s so).
void LeaveProcessorOfWorker() {
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof(all));
  sched_setaffinity(0, sizeof(all), &all);  // as far as the machine, or a container, allows
}

int TakePipe() {
  const int pipe = fcntl(0, F_DUPFD_CLOEXEC, kNotesFd + 1);
  const int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
  dup2(null, 0);
  close(null);
  return pipe;
}

std::vector<Stream> StreamsOf(int stage, int stages) {
  std::vector<Stream> streams;
  if (stage > 0) {
    streams.push_back({stage - 1, kTensorsTag, FileDescriptor(Own(kTensorsFd))});
    streams.push_back({0, kNotesTag, FileDescriptor(Own(kNotesFd))});
  }
  if (stage + 1 < stages) streams.push_back({stage + 1, kTensorsTag, {}});
  for (int later = 1; stage == 0 && later < stages; ++later) {
    streams.push_back({later, kNotesTag, {}});
  }
  return streams;
}

int Main(int count, char** arguments) {
  if (count == 2 && std::strcmp(arguments[1], "check") == 0) return 0;
  const int64_t stage = count > 1 ? Number(arguments[1]) : -1;
  const int64_t silence_ms = count > 3 ? Number(arguments[3]) : -1;
  const std::vector<std::string> names(arguments + (count > 4 ? 4 : count), arguments + count);
  if (stage < 0 || stage >= static_cast<int64_t>(names.size()) || silence_ms <= 0) {
    std::fprintf(stderr, "lorad-mpi is started by lorad-worker (--transport mpi), not by hand\n");
    return 2;
  }
  LeaveProcessorOfWorker();
  Progress progress;
  const int worker = TakePipe();
  std::thread([&] { Watch(worker, silence_ms, progress); }).detach();
  std::vector<Stream> streams = StreamsOf(static_cast<int>(stage), static_cast<int>(names.size()));
  int threads = 0;
  MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &threads);
  ++progress.calls;
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  const Links links = ConnectStages(static_cast<int>(stage), names, &progress);
  Relay(links, std::move(streams), {.worker = arguments[2], .silence_ms = silence_ms}, &progress);
  _exit(0);  // MPI_Finalize waits for peers that may be gone
}

}  // namespace
}  // namespace lorad::worker

int main(int count, char** arguments) { return lorad::worker::Main(count, arguments); }
