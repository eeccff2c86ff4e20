#include "server/serve.h"

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "logging/log.h"
#include "server/driver/driver.h"
#include "server/errors/errors.h"
#include "server/process_limits.h"
#include "server/services/api_server.h"
#include "server/services/beneath.h"
#include "server/supervisor/ompi_server.h"
#include "server/supervisor/supervisor.h"
#include "server/version.h"
#include "storage/credentials/credential_files.h"
#include "worker/host/stage_address.h"

namespace lorad::server {
namespace {

constexpr absl::Duration kStopPatience = absl::Seconds(60);        // cutting and saving at SIGTERM
constexpr absl::Duration kEndPatience = absl::Seconds(75);         // all of it
constexpr absl::Duration kCallsGrace = absl::Seconds(1);           // calls under way when it stops
constexpr absl::Duration kAuthorityNotice = absl::Hours(24 * 90);  // before it ends
constexpr absl::Duration kWorkerGrace = absl::Seconds(3);  // workers that were ordered to end

SupervisorSinks LogSinks() {
  return {logging::PassOn, [](const std::string& worker, const std::string& what, bool wanted) {
            spdlog::log(wanted ? spdlog::level::info : spdlog::level::warn, "worker {} {}", worker,
                        what);
          }};
}

OmpiServer::Note LogOfOmpiServer() {
  return [](const std::string& what, bool wanted) {
    spdlog::log(wanted ? spdlog::level::info : spdlog::level::warn, "ompi-server {}", what);
  };
}

std::string PathVariable() {
  const char* path = std::getenv("PATH");
  return path == nullptr ? "/usr/bin" : path;
}

// A disk or a library that hangs must not keep the daemon: what was acknowledged is stored.
void EndProcessAfter(absl::Duration patience) {
  std::thread([patience] {
    std::this_thread::sleep_for(absl::ToChronoMilliseconds(patience));
    spdlog::critical("still not stopped after {}: the process ends as it is",
                     absl::FormatDuration(patience));
    _exit(1);
  }).detach();
}

// Reads the site's authority, if workers on other hosts are to be served.
absl::Status OpenToOtherHosts(const ServeOptions& options, storage::Files& files,
                              ApiServerOptions* api_options) {
  if (options.worker_listen.empty()) return absl::OkStatus();
  absl::StatusOr<ListenAddress> listen = ParseWorkerListen(options.worker_listen);
  if (!listen.ok()) return listen.status();
  if (absl::Status status = CheckPortFree(*listen); !status.ok()) return status;
  absl::StatusOr<storage::Authority> authority = storage::ReadAuthority(files, options.data_dir);
  if (!authority.ok()) return authority.status();
  const absl::Duration left = authority->validity().until - absl::Now();
  const std::string mend = absl::StrCat("; `lorad auth init --data-dir ", options.data_dir,
                                        " --replace` makes another, and then every worker needs a "
                                        "new bundle");
  const std::string until = storage::TimeText(authority->validity().until);
  if (left <= absl::ZeroDuration()) {
    return Error(absl::StatusCode::kFailedPrecondition, "AUTHORITY_EXPIRED",
                 absl::StrCat("the site's authority held until ", until, mend));
  }
  if (left < kAuthorityNotice) {
    spdlog::warn("the site's authority holds until {} only{}", until, mend);
  }
  api_options->worker_listen = *std::move(listen);
  api_options->authority = std::make_shared<const storage::Authority>(*std::move(authority));
  return absl::OkStatus();
}

class LoradDaemon final : public Daemon {
 public:
  ~LoradDaemon() override {
    std::lock_guard lock(health_mutex_);
    health_ = nullptr;
  }

  absl::Status Start(const ServeOptions& options, storage::Files& files,
                     storage::StoreHooks hooks) {
    absl::StatusOr<ListenAddress> listen = ParseListen(options.listen);
    if (!listen.ok()) return listen.status();
    // An error that would be found late is reported before anything is touched.
    if (absl::Status status = CheckPortFree(*listen); !status.ok()) return status;
    if (absl::Status status = CheckOpenat2(); !status.ok()) return status;
    for (const std::string& root : options.model_roots) {
      if (files.IsDirectory(root)) continue;
      return Error(absl::StatusCode::kNotFound, "MODEL_ROOT_MISSING",
                   absl::StrCat("--model-root ", root, " is not a directory"));
    }
    if (const std::string& host = options.workers.stage_address; !host.empty()) {
      if (absl::Status status = worker::CheckStageAddress(host); !status.ok()) return status;
    }
    absl::StatusOr<std::vector<WorkerCommand>> workers = WorkerCommands(options.workers);
    if (!workers.ok()) return workers.status();
    const bool mpi = options.workers.transport == "mpi";
    absl::StatusOr<std::string> ompi_server = std::string();
    if (mpi) ompi_server = FindOmpiServer(absl::StrSplit(PathVariable(), ':'));
    if (!ompi_server.ok()) return ompi_server.status();

    ApiServerOptions api_options;
    api_options.listen = *listen;
    if (absl::Status status = OpenToOtherHosts(options, files, &api_options); !status.ok()) {
      return status;
    }
    api_options.model_roots = options.model_roots;
    api_options.own_workers = !workers->empty();
    for (const std::string& user : options.allow_users) {
      const absl::StatusOr<uid_t> uid = ParseUser(user);
      if (!uid.ok()) return uid.status();
      api_options.allowed_users.push_back(*uid);
    }

    DriverOptions driver_options;
    driver_options.data_dir = options.data_dir;
    driver_options.core = options.core;
    driver_options.core.version = kVersion;
    driver_options.core.mpi = mpi;
    driver_options.reserve_bytes = options.reserve_bytes;
    driver_options.on_writable = [this](const absl::Status& status) {
      std::lock_guard lock(health_mutex_);
      writable_ = status.ok();
      if (health_ != nullptr) health_->SetWritable(writable_);
    };
    absl::StatusOr<std::unique_ptr<Driver>> driver =
        Driver::Start(driver_options, files, std::move(hooks));
    if (!driver.ok()) return driver.status();
    driver_ = *std::move(driver);

    if (mpi) {
      absl::StatusOr<std::unique_ptr<OmpiServer>> started = OmpiServer::Start(
          {.binary = *ompi_server, .folder = options.data_dir + "/ompi-server"}, LogOfOmpiServer());
      if (!started.ok()) return started.status();
      ompi_server_ = *std::move(started);
      api_options.find_mpi_server = [server = ompi_server_.get()](const std::string& silent) {
        return server->Find(silent);
      };
    }
    absl::StatusOr<std::unique_ptr<ApiServer>> api = ApiServer::Start(api_options, *driver_);
    if (!api.ok()) return api.status();
    api_ = *std::move(api);
    {
      std::lock_guard lock(health_mutex_);
      health_ = api_.get();
      health_->SetWritable(writable_);
    }

    if (workers->empty()) return absl::OkStatus();
    for (WorkerCommand& worker : *workers) {
      worker.arguments.push_back(absl::StrCat("--coordinator=", api_->address().ToText()));
    }
    supervisor_ =
        std::make_unique<Supervisor>(*std::move(workers), SupervisorOptions{}, LogSinks());
    return absl::OkStatus();
  }

  const ListenAddress& address() const override { return api_->address(); }
  const ListenAddress& worker_address() const override { return api_->worker_address(); }

  std::vector<int64_t> worker_pids() const override {
    return supervisor_ == nullptr ? std::vector<int64_t>{} : supervisor_->pids();
  }

  void Stop(absl::Time deadline) override {
    api_->BeginStop();
    if (absl::Status status = driver_->Stop(deadline); !status.ok()) {
      spdlog::warn("not everything was saved: {}; those jobs go on from their checkpoints before",
                   std::string(status.message()));
    }
    if (supervisor_ != nullptr) supervisor_->Stop(kWorkerGrace);
    api_->Stop(absl::Now() + kCallsGrace);
  }

 private:
  std::mutex health_mutex_;
  ApiServer* health_ ABSL_GUARDED_BY(health_mutex_) = nullptr;  // while there is one
  bool writable_ ABSL_GUARDED_BY(health_mutex_) = true;

  // In the order in which they stand on each other.
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<OmpiServer> ompi_server_;  // null: no stages are joined over MPI
  std::unique_ptr<ApiServer> api_;
  std::unique_ptr<Supervisor> supervisor_;
};

}  // namespace

absl::StatusOr<int64_t> ParseBytes(const std::string& text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  const std::string unit = text.substr(digits);
  const int shift = unit.empty()    ? 0
                    : unit == "KiB" ? 10
                    : unit == "MiB" ? 20
                    : unit == "GiB" ? 30
                    : unit == "TiB" ? 40
                                    : -1;
  int64_t number = 0;
  if (shift < 0 || !absl::SimpleAtoi(text.substr(0, digits), &number) || number <= 0 ||
      number > (int64_t{1} << 50) >> shift) {
    return Error(absl::StatusCode::kInvalidArgument, "INVALID_BYTES",
                 absl::StrCat("a size must be a whole number of bytes, or of KiB, MiB, GiB or TiB "
                              "like 8GiB, got '",
                              text, "'"));
  }
  return number << shift;
}

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(const ServeOptions& options,
                                                      storage::Files& files,
                                                      storage::StoreHooks hooks) {
  auto daemon = std::make_unique<LoradDaemon>();
  if (absl::Status status = daemon->Start(options, files, std::move(hooks)); !status.ok()) {
    return status;
  }
  return daemon;
}

absl::Status RunServer(const ServeOptions& options, storage::Files& files,
                       storage::StoreHooks hooks) {
  SetUpProcess();
  signal(SIGPIPE, SIG_IGN);
  sigset_t stop_signals;
  sigemptyset(&stop_signals);
  sigaddset(&stop_signals, SIGTERM);
  sigaddset(&stop_signals, SIGINT);
  // Its terminal is closed; where it is to outlive that, nohup has the signal ignored.
  struct sigaction hang_up = {};
  sigaction(SIGHUP, nullptr, &hang_up);
  if (hang_up.sa_handler != SIG_IGN) sigaddset(&stop_signals, SIGHUP);
  // Blocked in every thread to come: sigwait below is the only one to see them.
  pthread_sigmask(SIG_BLOCK, &stop_signals, nullptr);

  if (absl::Status status = CheckProcessLimits(); !status.ok()) return status;
  absl::StatusOr<std::unique_ptr<Daemon>> daemon = Daemon::Start(options, files, std::move(hooks));
  if (!daemon.ok()) return daemon.status();
  std::printf("lorad listening on %s\n", (*daemon)->address().ToText().c_str());
  std::fflush(stdout);
  spdlog::info("lorad {} serves {} on {}", kVersion, options.data_dir,
               (*daemon)->address().ToText());
  if (!options.worker_listen.empty()) {
    const std::string address = (*daemon)->worker_address().ToText();
    std::printf("lorad listening for workers on %s\n", address.c_str());
    std::fflush(stdout);
    spdlog::info("workers on other hosts are served on {}", address);
  }

  int received = 0;
  sigwait(&stop_signals, &received);
  spdlog::info("{}: stopping; a second one ends the daemon at once",
               absl::StrCat("SIG", sigabbrev_np(received)));
  pthread_sigmask(SIG_UNBLOCK, &stop_signals, nullptr);  // their default action ends the process
  EndProcessAfter(kEndPatience);
  (*daemon)->Stop(absl::Now() + kStopPatience);
  daemon->reset();
  spdlog::info("stopped");
  return absl::OkStatus();
}

}  // namespace lorad::server
