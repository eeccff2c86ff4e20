#include "server/supervisor/supervisor.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

// The longest the loop sleeps: a child whose grandchild keeps its pipe open is noticed this late.
constexpr int kPollMs = 200;

using SteadyClock = std::chrono::steady_clock;
using Time = SteadyClock::time_point;

struct Pipe {
  int read_end = -1;
  int write_end = -1;
};

// None (errno says why) where descriptors are short.
std::optional<Pipe> MakePipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return std::nullopt;
  return Pipe{ends[0], ends[1]};
}

// In the child, between fork and exec: only async-signal-safe calls.
[[noreturn]] void BecomeWorker(char* const* arguments, int output, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // it died before prctl
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  signal(SIGPIPE, SIG_DFL);
  setpgid(0, 0);  // a Ctrl-C at the terminal is the coordinator's to handle
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, 0);
  dup2(output, 1);
  dup2(output, 2);
  close_range(3, ~0U, 0);
  execv(arguments[0], arguments);
  const char* cause = strerrordesc_np(errno);
  (void)!write(2, "cannot be executed: ", 20);
  (void)!write(2, cause, strlen(cause));
  (void)!write(2, "\n", 1);
  _exit(127);
}

std::string EndText(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    return absl::StrCat("was ended by signal ", WTERMSIG(wait_status), " (",
                        strsignal(WTERMSIG(wait_status)), ")");
  }
  return absl::StrCat("ended with exit code ", WEXITSTATUS(wait_status));
}

}  // namespace

class Supervisor::Loop {
 public:
  Loop(std::vector<WorkerCommand> commands, const SupervisorOptions& options, SupervisorSinks sinks)
      : options_(options),
        sinks_(std::move(sinks)),
        wake_(MakePipe().value_or(Pipe())),
        state_(commands.size()) {
    for (WorkerCommand& command : commands) {
      assert(!command.arguments.empty());
      Child child;
      child.command = std::move(command);
      child.backoff = options_.backoff_first;
      children_.push_back(std::move(child));
    }
    thread_ = std::thread([this] { Run(); });
  }

  ~Loop() {
    Stop(absl::ZeroDuration());
    if (wake_.read_end < 0) return;
    close(wake_.read_end);
    close(wake_.write_end);
  }

  void Stop(absl::Duration grace) {
    if (!thread_.joinable()) return;
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
      grace_ = grace;
    }
    if (wake_.write_end >= 0) (void)!write(wake_.write_end, "", 1);
    thread_.join();
  }

  void KillAll() {
    {
      std::lock_guard lock(mutex_);
      kill_all_ = true;
    }
    if (wake_.write_end >= 0) (void)!write(wake_.write_end, "", 1);
  }

  std::vector<int64_t> pids() const {
    std::lock_guard lock(mutex_);
    std::vector<int64_t> pids;
    for (const State& state : state_) pids.push_back(state.pid);
    return pids;
  }

  std::vector<int> restarts() const {
    std::lock_guard lock(mutex_);
    std::vector<int> restarts;
    for (const State& state : state_) restarts.push_back(state.restarts);
    return restarts;
  }

 private:
  struct Child {
    WorkerCommand command;
    pid_t pid = 0;  // 0 = not running
    int output = -1;
    std::string line;  // the part of a line that has come
    Time started;
    Time next_start;  // at first: at once
    absl::Duration backoff;
    bool started_before = false;
  };
  struct State {
    int64_t pid = 0;
    int restarts = 0;
  };

  void Run() {
    std::optional<Time> stopping_since;
    absl::Duration grace;
    int signals_sent = 0;
    while (true) {
      const Time now = SteadyClock::now();
      bool kill_all = false;
      if (!stopping_since) {
        std::lock_guard lock(mutex_);
        kill_all = std::exchange(kill_all_, false);
        if (stop_) {
          stopping_since = now;
          grace = grace_;
        }
      }
      const bool stopping = stopping_since.has_value();
      const absl::Duration since =
          stopping ? absl::FromChrono(now - *stopping_since) : absl::ZeroDuration();
      if (kill_all) SignalAll(SIGKILL);
      if (!stopping) StartDue(now);
      if (stopping && !AnyRuns()) return;
      if (stopping && signals_sent == 0 && since >= grace) {
        SignalAll(SIGTERM);
        signals_sent = 1;
      }
      if (stopping && signals_sent == 1 && since >= 2 * grace) {
        SignalAll(SIGKILL);
        signals_sent = 2;
      }
      Wait(now);
      for (size_t i = 0; i < children_.size(); ++i) Reap(i);
    }
  }

  bool AnyRuns() const {
    return std::any_of(children_.begin(), children_.end(),
                       [](const Child& child) { return child.pid != 0; });
  }

  void SignalAll(int signal) {
    for (const Child& child : children_) {
      if (child.pid != 0) kill(child.pid, signal);
    }
  }

  void StartDue(Time now) {
    for (size_t i = 0; i < children_.size(); ++i) {
      if (children_[i].pid == 0 && now >= children_[i].next_start) Start(i, now);
    }
  }

  void Start(size_t index, Time now) {
    Child& child = children_[index];
    std::vector<char*> arguments;
    for (std::string& argument : child.command.arguments) arguments.push_back(argument.data());
    arguments.push_back(nullptr);
    const std::optional<Pipe> pipe = MakePipe();
    if (!pipe) return Postpone(child, now, errno);
    const pid_t parent = getpid();
    const pid_t pid = fork();
    if (pid == 0) BecomeWorker(arguments.data(), pipe->write_end, parent);
    const int fork_errno = errno;
    close(pipe->write_end);
    if (pid < 0) {
      close(pipe->read_end);
      return Postpone(child, now, fork_errno);
    }
    fcntl(pipe->read_end, F_SETFL, O_NONBLOCK);
    child.pid = pid;
    child.output = pipe->read_end;
    child.started = now;
    {
      std::lock_guard lock(mutex_);
      state_[index].pid = pid;
      if (child.started_before) state_[index].restarts += 1;
    }
    child.started_before = true;
    sinks_.note(child.command.name, absl::StrCat("started as process ", pid), true);
  }

  // The shortage passes: of descriptors, memory, processes.
  void Postpone(Child& child, Time now, int why) {
    const std::string pause = absl::FormatDuration(child.backoff);
    sinks_.note(
        child.command.name,
        absl::StrCat("cannot be started: ", strerrordesc_np(why), "; tried again in ", pause),
        false);
    child.next_start = now + absl::ToChronoNanoseconds(child.backoff);
    child.backoff = std::min(2 * child.backoff, options_.backoff_max);
  }

  // Until output, a wake-up, the next start or kPollMs; forwards what came.
  void Wait(Time now) {
    std::vector<pollfd> waits = {{wake_.read_end, POLLIN, 0}};
    int timeout_ms = kPollMs;
    for (const Child& child : children_) {
      if (child.output >= 0) waits.push_back({child.output, POLLIN, 0});
      if (child.pid == 0) {
        const int64_t ms = absl::ToInt64Milliseconds(absl::FromChrono(child.next_start - now)) + 1;
        timeout_ms = static_cast<int>(std::clamp<int64_t>(ms, 1, timeout_ms));
      }
    }
    if (poll(waits.data(), waits.size(), timeout_ms) <= 0) return;
    char ignored[16];
    if (waits[0].revents != 0) (void)!read(wake_.read_end, ignored, sizeof(ignored));
    for (Child& child : children_) Forward(child);
  }

  // Reads what there is of a child's output, line by line. Closes the pipe at its end.
  void Forward(Child& child) {
    char buffer[4096];
    while (child.output >= 0) {
      const ssize_t bytes = read(child.output, buffer, sizeof(buffer));
      if (bytes < 0) return;  // EAGAIN: no more for now
      if (bytes == 0) {
        close(std::exchange(child.output, -1));
        return;
      }
      for (const char c : std::string_view(buffer, static_cast<size_t>(bytes))) {
        if (c != '\n') child.line += c;
        if (c == '\n' || child.line.size() == static_cast<size_t>(options_.line_bytes_max)) {
          sinks_.line(child.command.name, std::exchange(child.line, ""));
        }
      }
    }
  }

  void Reap(size_t index) {
    Child& child = children_[index];
    int wait_status = 0;
    if (child.pid == 0 || waitpid(child.pid, &wait_status, WNOHANG) != child.pid) return;
    Forward(child);
    if (child.output >= 0) close(std::exchange(child.output, -1));
    if (!child.line.empty()) sinks_.line(child.command.name, std::exchange(child.line, ""));
    child.pid = 0;
    const Time now = SteadyClock::now();
    if (absl::FromChrono(now - child.started) >= options_.backoff_reset)
      child.backoff = options_.backoff_first;
    child.next_start = now + absl::ToChronoNanoseconds(child.backoff);
    std::string what = EndText(wait_status);
    bool stop;
    {
      std::lock_guard lock(mutex_);
      state_[index].pid = 0;
      stop = stop_;
    }
    if (!stop) {
      absl::StrAppend(&what, "; starts again in ", absl::FormatDuration(child.backoff));
    }
    child.backoff = std::min(2 * child.backoff, options_.backoff_max);
    sinks_.note(child.command.name, what, stop);
  }

  const SupervisorOptions options_;
  const SupervisorSinks sinks_;
  const Pipe wake_;  // none where descriptors were short: kPollMs has to do

  // The loop's thread alone:
  std::vector<Child> children_;

  mutable std::mutex mutex_;
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  bool kill_all_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Duration grace_ ABSL_GUARDED_BY(mutex_);
  std::vector<State> state_ ABSL_GUARDED_BY(mutex_);

  std::thread thread_;
};

Supervisor::Supervisor(std::vector<WorkerCommand> commands, const SupervisorOptions& options,
                       SupervisorSinks sinks)
    : loop_(std::make_unique<Loop>(std::move(commands), options, std::move(sinks))) {}

Supervisor::~Supervisor() = default;

void Supervisor::Stop(absl::Duration grace) { loop_->Stop(grace); }

void Supervisor::KillAll() { loop_->KillAll(); }

std::vector<int64_t> Supervisor::pids() const { return loop_->pids(); }

std::vector<int> Supervisor::restarts() const { return loop_->restarts(); }

absl::StatusOr<std::string> FindWorkerBinary(const std::string& given,
                                             const std::vector<std::string>& directories) {
  std::vector<std::string> places;
  if (!given.empty()) {
    places.push_back(given);
  } else {
    for (const std::string& directory : directories) {
      places.push_back(absl::StrCat(directory, "/lorad-worker"));
      places.push_back(absl::StrCat(directory, "/../worker/lorad-worker"));
    }
  }
  for (const std::string& place : places) {
    struct stat status;
    if (stat(place.c_str(), &status) == 0 && S_ISREG(status.st_mode) &&
        access(place.c_str(), X_OK) == 0) {
      return place;
    }
  }
  return Error(absl::StatusCode::kNotFound, "WORKER_BINARY_MISSING",
               absl::StrCat("lorad-worker is not at ", absl::StrJoin(places, ", nor at "),
                            ": build //worker:lorad-worker, name it with --worker-binary, or start "
                            "without embedded workers (--workers none)"));
}

}  // namespace lorad::server
