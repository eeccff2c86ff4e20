#include "worker/mpi/helper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "spdlog/spdlog.h"
#include "worker/mpi/exit_codes.h"
#include "worker/mpi/folder.h"

namespace lorad::worker {
namespace {

// A check starts a process and loads MPI's libraries.
constexpr std::chrono::seconds kCheckAtMost{10};
// What the daemon of Open MPI takes to notice that its process has ended, at most.
constexpr int kDaemonMs = 5'000;
constexpr size_t kLineBytesMax = 4'096;

absl::Status Failed(std::string_view what) {
  return absl::UnavailableError(
      absl::StrCat("cannot start lorad-mpi: ", std::string(what), ": ", strerrordesc_np(errno)));
}

struct Pipe {
  FileDescriptor read_end, write_end;
};

absl::StatusOr<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return Failed("no pipe");
  return Pipe{FileDescriptor(ends[0]), FileDescriptor(ends[1])};
}

std::vector<char*> Pointers(std::vector<std::string>* texts) {
  std::vector<char*> pointers;
  for (std::string& text : *texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// All that the child needs, made before the fork: behind it only async-signal-safe calls are left.
struct Birth {
  std::vector<char*> arguments, environment;
  std::vector<int> descriptors;  // what becomes 0, 1, 2, ...
  pid_t parent = 0;
};

[[noreturn]] void BecomeHelper(Birth* birth) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != birth->parent) _exit(kNotInstalled);  // it died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_IGN);
  setpgid(0, 0);  // a Ctrl-C at the terminal is the worker's to handle
  const int count = static_cast<int>(birth->descriptors.size());
  for (int& fd : birth->descriptors) fd = fcntl(fd, F_DUPFD, count);  // out of each other's way
  for (int i = 0; i < count; ++i) dup2(birth->descriptors[static_cast<size_t>(i)], i);
  close_range(static_cast<unsigned>(count), ~0U, 0);
  execve(birth->arguments[0], birth->arguments.data(), birth->environment.data());
  const char* cause = strerrordesc_np(errno);
  (void)!write(2, cause, strlen(cause));
  (void)!write(2, "\n", 1);
  _exit(kNotInstalled);
}

absl::Status EndOf(int wait_status, const std::string& last_line) {
  const std::string words = last_line.empty() ? "" : absl::StrCat(": ", last_line);
  if (WIFSIGNALED(wait_status)) {
    return absl::UnavailableError(absl::StrCat("lorad-mpi was ended by signal ",
                                               WTERMSIG(wait_status), " (",
                                               strsignal(WTERMSIG(wait_status)), ")", words));
  }
  const int code = WEXITSTATUS(wait_status);
  if (code == 0) return absl::OkStatus();
  if (code == kNotInstalled) {
    return absl::FailedPreconditionError(
        absl::StrCat("MPI is not installed on this machine: apt install openmpi-bin "
                     "libopenmpi-dev and build //worker/mpi:lorad-mpi, or use --transport sockets "
                     "(lorad-mpi",
                     words, ")"));
  }
  if (code == kServerSilent) {
    return absl::DeadlineExceededError(absl::StrCat("the ompi-server does not answer", words));
  }
  return absl::UnavailableError(absl::StrCat("lorad-mpi ended with exit code ", code, words));
}

}  // namespace

std::vector<std::string> HelperEnvironment(const std::vector<std::string>& environment,
                                           const std::string& server_uri) {
  std::vector<std::string> kept;
  for (const std::string& variable : environment) {
    bool launcher = absl::StartsWith(variable, "TMPDIR=");
    for (const char* prefix : {"OMPI_", "PMIX_", "PMI_", "SLURM_"}) {
      launcher = launcher || absl::StartsWith(variable, prefix);
    }
    if (!launcher) kept.push_back(variable);
  }
  if (!server_uri.empty()) kept.push_back("OMPI_MCA_pmix_server_uri=" + server_uri);
  return kept;
}

std::vector<std::string> HelperEnvironment(const std::string& server_uri) {
  std::vector<std::string> environment;
  for (char** variable = environ; *variable != nullptr; ++variable) {
    environment.emplace_back(*variable);
  }
  return HelperEnvironment(environment, server_uri);
}

absl::StatusOr<std::string> FindHelper(const std::vector<std::string>& directories) {
  std::vector<std::string> places;
  for (const std::string& directory : directories) {
    for (const char* way : {"/lorad-mpi", "/mpi/lorad-mpi"}) {
      places.push_back(absl::StrCat(directory, way));
      struct stat status;
      if (stat(places.back().c_str(), &status) != 0 || !S_ISREG(status.st_mode) ||
          access(places.back().c_str(), X_OK) != 0) {
        continue;
      }
      const absl::Status works = CheckHelper(places.back());
      if (!works.ok()) return works;
      return places.back();
    }
  }
  return absl::FailedPreconditionError(
      absl::StrCat("lorad-mpi is not at ", absl::StrJoin(places, ", nor at "),
                   ": build //worker/mpi:lorad-mpi and install it beside lorad-worker, or use "
                   "--transport sockets"));
}

absl::Status CheckHelper(const std::string& helper) {
  const auto check =
      Helper::Start({.arguments = {helper, "check"}, .environment = HelperEnvironment("")});
  if (!check.ok()) return check.status();
  if (!(*check)->End(kCheckAtMost)) {
    return absl::UnavailableError(
        absl::StrCat(helper, " does not start within ", kCheckAtMost.count(), " s"));
  }
  return (*check)->status();
}

class Helper::Process {
 public:
  Process(HelperCommand command, Pipe life, Pipe words, HelperFolder folder,
          std::function<void()> at_end)
      : life_(std::move(life.write_end)),
        words_(std::move(words.read_end)),
        at_end_(std::move(at_end)),
        folder_(std::move(folder)) {
    fcntl(words_.get(), F_SETFL, O_NONBLOCK);
    command.environment.push_back("TMPDIR=" + folder_->path());
    thread_ = std::thread([this, command = std::move(command), life = std::move(life.read_end),
                           words = std::move(words.write_end)]() mutable {
      Run(std::move(command), std::move(life), std::move(words));
    });
  }

  ~Process() { End(std::chrono::milliseconds(0)); }

  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

  bool ended() const {
    std::lock_guard lock(mutex_);
    return ended_;
  }

  bool End(std::chrono::milliseconds grace) {
    std::unique_lock lock(mutex_);
    const bool by_itself = changed_.wait_for(
        lock, grace, [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ended_; });
    // Not reaped before pid_ is 0: the number is still the helper's.
    end_wanted_ = true;
    if (pid_ > 0) kill(static_cast<pid_t>(pid_), SIGKILL);
    lock.unlock();
    if (thread_.joinable()) thread_.join();
    return by_itself;
  }

 private:
  void Run(HelperCommand command, FileDescriptor life, FileDescriptor words) {
    const FileDescriptor process = Fork(&command, life.get(), words.get());
    life = FileDescriptor();
    words = FileDescriptor();
    command.inherited.clear();
    if (process.open()) Watch(process.get());
    if (at_end_) at_end_();
    AwaitDaemon();
    folder_.reset();
  }

  // The process as a descriptor; none: it could not be started, and status() says why.
  FileDescriptor Fork(HelperCommand* command, int life, int words) {
    Birth birth{.arguments = Pointers(&command->arguments),
                .environment = Pointers(&command->environment),
                .descriptors = {life, words, words},
                .parent = getpid()};
    for (const FileDescriptor& fd : command->inherited) birth.descriptors.push_back(fd.get());
    std::lock_guard lock(mutex_);
    const pid_t pid = end_wanted_ ? -1 : fork();
    if (pid == 0) BecomeHelper(&birth);
    FileDescriptor process(pid < 0 ? -1 : static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
    if (process.open()) {
      pid_ = pid;
      return process;
    }
    status_ = Failed("no process");
    if (pid > 0) {
      kill(pid, SIGKILL);
      waitpid(pid, nullptr, 0);
    }
    SetEnded();
    return process;
  }

  // Until it has ended.
  void Watch(int process) {
    for (pollfd fds[] = {{process, POLLIN, 0}, {words_.get(), POLLIN, 0}}; fds[0].revents == 0;) {
      poll(fds, 2, -1);
      if (!Listen()) fds[1].fd = -1;
    }
    std::lock_guard lock(mutex_);
    int wait_status = 0;
    waitpid(static_cast<pid_t>(pid_), &wait_status, 0);
    status_ = EndOf(wait_status, last_line_);
    pid_ = 0;
    SetEnded();
  }

  void SetEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    ended_ = true;
    changed_.notify_all();
  }

  // Its daemon holds the other end of words_, so the end of them is the daemon's. That ends when
  // its process has, and empties the folder.
  void AwaitDaemon() {
    pollfd fd = {words_.get(), POLLIN, 0};
    while (Listen()) {
      if (poll(&fd, 1, kDaemonMs) > 0) continue;
      return spdlog::warn("the daemon of an ended lorad-mpi is still there after {} ms", kDaemonMs);
    }
  }

  // Takes what there is on stderr. False: no more will come.
  bool Listen() {
    char buffer[1024];
    while (true) {
      const ssize_t got = read(words_.get(), buffer, sizeof(buffer));
      if (got <= 0) return got < 0 && (errno == EAGAIN || errno == EINTR);
      for (const char c : std::string_view(buffer, static_cast<size_t>(got))) {
        if (c != '\n' && line_.size() < kLineBytesMax) line_ += c;
        if (c != '\n' || line_.empty()) continue;
        spdlog::warn("lorad-mpi: {}", line_);
        last_line_ = std::exchange(line_, "");
      }
    }
  }

  const FileDescriptor life_;  // the helper ends when this is closed
  const FileDescriptor words_;
  const std::function<void()> at_end_;

  // The thread's alone:
  std::optional<HelperFolder> folder_;
  std::string line_, last_line_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int64_t pid_ ABSL_GUARDED_BY(mutex_) = 0;
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool end_wanted_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<Helper>> Helper::Start(HelperCommand command,
                                                      std::function<void()> at_end) {
  auto life = MakePipe();
  if (!life.ok()) return life.status();
  auto words = MakePipe();
  if (!words.ok()) return words.status();
  auto folder = HelperFolder::Make();
  if (!folder.ok()) return folder.status();
  return std::unique_ptr<Helper>(
      new Helper(std::make_unique<Process>(std::move(command), *std::move(life), *std::move(words),
                                           *std::move(folder), std::move(at_end))));
}

Helper::Helper(std::unique_ptr<Process> process) : process_(std::move(process)) {}

Helper::~Helper() = default;

absl::Status Helper::status() const { return process_->status(); }

bool Helper::ended() const { return process_->ended(); }

bool Helper::End(std::chrono::milliseconds grace) { return process_->End(grace); }

}  // namespace lorad::worker
