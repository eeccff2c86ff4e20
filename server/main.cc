// lorad: the coordinator's daemon.

#include <spdlog/fmt/fmt.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "logging/log.h"
#include "planner/schedule/policy_limits.h"
#include "server/auth_command.h"
#include "server/errors/errors.h"
#include "server/serve.h"
#include "server/validation/names.h"
#include "server/version.h"
#include "storage/files/files.h"
#include "worker/host/limits.h"

namespace lorad::server {
namespace {

constexpr int kFailed = 1;
constexpr int kWrongUsage = 2;

int Fail(const absl::Status& status, int exit_code) {
  fmt::print(stderr, "error: {}: {}\n", Reason(status), std::string(status.message()));
  return exit_code;
}

struct Arguments {
  ServeOptions serve;
  std::string workers = "auto";
  std::string worker_memory;
  std::string reserve = "64MiB";
  int64_t lease_s = 30;
  int64_t patience_floor_s = 600;
  std::string log_format = "text";
  std::string log_level = "info";
  AuthOptions auth;
};

// Help shows it as that of CLI::Range.
CLI::Validator Between(double least, double most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        double value = 0;
        const bool ok = absl::SimpleAtod(text, &value) && value >= least && value <= most;
        return ok ? "" : fmt::format("must be from {} to {}, got {}", least, most, text);
      },
      fmt::format("FLOAT in [{} - {}]", least, most));
}

// CLI::Range calls 0.5 out of range, too.
CLI::Validator WholeBetween(int64_t least, int64_t most) {
  return CLI::Validator(
      [least, most](const std::string& text) {
        int64_t value = 0;
        const bool ok = CLI::detail::lexical_cast(text, value) && value >= least && value <= most;
        return ok ? ""
                  : fmt::format("must be a whole number from {} to {}, got {}", least, most, text);
      },
      fmt::format("INT in [{} - {}]", least, most));
}

// Who trains where (planner::SchedulePolicy).
void AddPolicy(CLI::App& serve, CoreOptions& core) {
  planner::SchedulePolicy& policy = core.policy;
  serve.add_flag("!--no-evict", policy.evict,
                 "Jobs wait for those that run, whatever their priority; without it the least "
                 "important are saved and make room");
  serve.add_flag("!--no-rebalance", policy.rebalance,
                 "Jobs stay on their worker; without it they move to where all end earlier");
  serve
      .add_option(
          "--minimum-run", policy.minimum_run_s,
          "So long a job runs before it makes room for one of equal priority, or moves again")
      ->capture_default_str()
      ->check(WholeBetween(0, planner::kMinimumRunMaxS))
      ->type_name("SECONDS");
  serve
      .add_option("--points-per-hour", policy.points_per_hour,
                  "A job that waits gains so many points; they order jobs of one priority, and one "
                  "point lets it take the place of an equal one")
      ->capture_default_str()
      ->check(Between(0, planner::kPointsPerHourMax))
      ->type_name("POINTS");
  serve.add_option("--points-max", policy.points_max, "But never more points than these")
      ->capture_default_str()
      ->check(Between(0, planner::kPointsMax))
      ->type_name("POINTS");
  serve
      .add_option(
          "--share-label", core.share_label,
          "Users are told apart by this label, and share: a job has one point less for each "
          "job of its user that runs or stands before it (default: no shares)")
      ->check(CLI::Validator(CheckLabelKey, ""))
      ->type_name("KEY");
  serve
      .add_option(
          "--least-gain", policy.least_gain,
          "A group takes another job only if what it computes a second rises by this share (0: as "
          "many as memory holds)")
      ->capture_default_str()
      ->check(Between(0, planner::kLeastGainMax))
      ->type_name("SHARE");
}

void AddWorkers(CLI::App& serve, Arguments& arguments) {
  ServeOptions& options = arguments.serve;
  serve
      .add_option(
          "--workers", arguments.workers,
          "Workers to start: auto (one for each GPU, else one on the CPU), none, cpu:N, cuda or "
          "cuda:I,J,..")
      ->capture_default_str();
  serve
      .add_option("--worker-threads", options.workers.threads,
                  "Threads of each worker on the CPU (default: the machine's, shared out)")
      ->check(WholeBetween(1, worker::kThreadsMax));
  serve
      .add_option("--worker-memory", arguments.worker_memory,
                  "Memory of each worker, like 8GiB (default: four fifths of what is available, "
                  "shared out; on a GPU what is free)")
      ->type_name("BYTES");
  serve
      .add_option("--worker-precision", options.workers.precision,
                  "Arithmetic of workers on GPUs: bf16, or fp32 to compare with a reference "
                  "(default: bf16)")
      ->check(CLI::IsMember({"bf16", "fp32"}));
  serve
      .add_option(
          "--transport", options.workers.transport,
          "How its workers reach one another that have stages of one model, as lorad-worker's "
          "(default: auto); mpi starts ompi-server, and workers that are started elsewhere may "
          "have --transport mpi then")
      ->check(CLI::IsMember({"auto", "peer", "nccl", "sockets", "mpi"}));
  serve
      .add_option("--stage-address", options.workers.stage_address,
                  "Name or address of this host at which its workers are reached by those on other "
                  "hosts that have other stages of a model (default: 127.0.0.1, this host's alone)")
      ->type_name("HOST");
  serve
      .add_option("--worker-binary", options.workers.binary,
                  "lorad-worker (default: beside lorad, or in ../worker/)")
      ->type_name("PATH");
  serve
      .add_option(
          "--lease", arguments.lease_s,
          "A worker that is silent for so many seconds is lost, and its jobs go on elsewhere")
      ->capture_default_str()
      ->check(WholeBetween(2, 3600))
      ->type_name("SECONDS");
  serve
      .add_option("--patience", options.core.patience,
                  "A worker that is alive but says nothing of a group that it forms, or of its "
                  "window, is given up after so many times what that should take")
      ->capture_default_str()
      ->check(Between(1, 1e6))
      ->type_name("FACTOR");
  serve
      .add_option("--patience-floor", arguments.patience_floor_s,
                  "But never before so many seconds")
      ->capture_default_str()
      ->check(WholeBetween(1, 30 * 24 * 3600))
      ->type_name("SECONDS");
}

void AddServe(CLI::App& app, Arguments& arguments) {
  CLI::App& serve = *app.add_subcommand("serve", "Serves the API until SIGTERM, SIGINT or SIGHUP");
  ServeOptions& options = arguments.serve;
  serve.add_option("--data-dir", options.data_dir, "Where everything is kept; made if missing")
      ->required()
      ->type_name("DIR");
  serve.add_option("--listen", options.listen, "Loopback address; port 0 picks a free one")
      ->capture_default_str()
      ->type_name("HOST:PORT");
  serve
      .add_option(
          "--worker-listen", options.worker_listen,
          "Address for workers on other hosts, over TLS (`lorad auth` makes what that needs; "
          "default: none)")
      ->type_name("HOST:PORT");
  serve
      .add_option("--reserve", arguments.reserve,
                  "Room on the disk of the data directory that is kept for the store; creates are "
                  "refused while as much is not free beside it (0: none)")
      ->capture_default_str()
      ->type_name("BYTES");
  serve
      .add_option("--model-root", options.model_roots,
                  "Models are registered from beneath it alone; may be given again (default: /)")
      ->type_name("DIR");
  serve
      .add_option("--allow-user", options.allow_users,
                  "User who may talk to it besides its own and root; may be given again")
      ->type_name("NAME|UID");
  serve
      .add_option("--microbatch-tokens", options.core.microbatch_tokens,
                  "Tokens that are packed into one microbatch (default: 1024 on a CPU; on a GPU "
                  "8192, or less where memory is short)")
      ->check(WholeBetween(16, 1 << 20));
  AddWorkers(serve, arguments);
  AddPolicy(serve, options.core);
  serve.add_option("--log-format", arguments.log_format, "text or json, on stderr")
      ->capture_default_str()
      ->check(CLI::IsMember({"text", "json"}));
  serve.add_option("--log-level", arguments.log_level, "trace, debug, info, warning, error or off")
      ->capture_default_str()
      ->check(CLI::IsMember({"trace", "debug", "info", "warning", "error", "off"}));
}

int Main(int argc, char** argv) {
  CLI::App app("lorad fine-tunes many LoRA adapters at once on shared base models.", "lorad");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  Arguments arguments;
  AddServe(app, arguments);
  AddAuth(app, arguments.auth);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& wrong) {
    fmt::print(stderr, "error: USAGE: {}; see `lorad {} --help`\n", wrong.what(),
               app.got_subcommand("auth") ? "auth" : "serve");
    return kWrongUsage;
  }
  if (app.got_subcommand("auth")) {
    const absl::StatusOr<std::string> said = RunAuth(app, arguments.auth);
    if (!said.ok()) return Fail(said.status(), kFailed);
    fmt::print("{}", *said);
    return 0;
  }

  const absl::StatusOr<WorkerChoice> workers = ParseWorkers(arguments.workers);
  if (!workers.ok()) return Fail(workers.status(), kWrongUsage);
  arguments.serve.workers.choice = *workers;
  if (!arguments.worker_memory.empty()) {
    const absl::StatusOr<int64_t> bytes = ParseBytes(arguments.worker_memory);
    if (!bytes.ok()) return Fail(bytes.status(), kWrongUsage);
    arguments.serve.workers.memory_bytes = *bytes;
  }
  arguments.serve.reserve_bytes = 0;
  if (arguments.reserve != "0") {
    const absl::StatusOr<int64_t> bytes = ParseBytes(arguments.reserve);
    if (!bytes.ok()) return Fail(bytes.status(), kWrongUsage);
    arguments.serve.reserve_bytes = *bytes;
  }
  arguments.serve.core.policy.fair_share = !arguments.serve.core.share_label.empty();
  arguments.serve.core.lease_ms = arguments.lease_s * 1000;
  arguments.serve.core.patience_floor_ms = arguments.patience_floor_s * 1000;
  // By link and by name: a runfiles tree has the worker beside the link.
  std::error_code ignored;
  arguments.serve.workers.directories = {
      std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path().string(),
      std::filesystem::absolute(argv[0], ignored).parent_path().string()};
  logging::SetUp(arguments.log_format == "json" ? logging::Format::kJson : logging::Format::kText,
                 arguments.log_level);
  const absl::Status status = RunServer(arguments.serve, storage::RealFiles());
  return status.ok() ? 0 : Fail(status, kFailed);
}

}  // namespace
}  // namespace lorad::server

int main(int argc, char** argv) {
  lorad::logging::KeepStandardDescriptors();
  // Debian's absl looks for a cycle at every lock that gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  return lorad::server::Main(argc, argv);
}
