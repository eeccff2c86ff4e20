// lora cluster [--record FILE] | worker ls | worker drain | worker undrain

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/recording.h"
#include "client/text/cluster_board.h"
#include "client/text/json.h"
#include "client/text/stages.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "client/whole_file.h"
#include "lorad/v1/cluster.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Cluster;
using lorad::v1::ClusterStatus;
using lorad::v1::Worker;

constexpr std::chrono::milliseconds kLookEvery(500);

struct Options {
  std::string worker;
  std::string reason;
  bool wait = false;
};

void PrintGroups(const ClusterStatus& cluster) {
  Table groups({"GROUP", "EPOCH", "MODEL", "WORKERS", "JOBS", "CAPACITY", "WINDOWS", "MICROBATCHES",
                "ADAPTERS/MICROBATCH", "TOKENS/S", "BUBBLE", "RESERVED"});
  for (const auto& group : cluster.groups()) {
    groups.Add({group.name(), absl::StrCat(group.epoch()), group.base_model(),
                absl::StrCat(group.workers_size()), absl::StrCat(group.jobs_size()),
                absl::StrCat(group.capacity_tokens()), absl::StrCat(group.windows()),
                absl::StrCat(group.microbatches()),
                absl::StrFormat("%.2f", group.adapters_per_microbatch()),
                PaceText(group.tokens_per_second()),
                group.measured_microbatches() > 0
                    ? absl::StrFormat("%.1f %%", 100 * group.bubble_ratio())
                    : "-",
                BytesText(group.reserved_bytes())});
  }
  groups.PrintFit(std::cout, TerminalColumns(), {0, 9, 1, 3, 2, 6, 10, 8, 7, 4, 5});
  StageTable stages;
  for (const auto& group : cluster.groups()) {
    for (int stage = 0; stage < group.stages_size(); ++stage) {
      stages.Add(group.name(), stage, group.stages(stage));
    }
  }
  std::cout << "\n";
  stages.Print(std::cout);
}

void AddErrors(const std::string& what, const lorad::v1::ForecastErrors& errors, Table& table) {
  if (errors.forecasts() == 0) return;
  table.Add({what, absl::StrFormat("%d, off by %.0f %% in the mean, %.0f %% within their interval",
                                   errors.forecasts(), 100 * errors.mean_error(),
                                   100 * errors.inside())});
}

absl::Status Show(Session& session) {
  ClusterStatus cluster;
  const auto status =
      Call(session, &Cluster::Stub::GetCluster, lorad::v1::GetClusterRequest(), cluster);
  if (!status.ok()) return status;
  if (session.json) {
    std::cout << ToJson(cluster) << "\n";
    return status;
  }
  Table table = Table::OfFields();
  table.Add({"version", cluster.version()});
  table.Add({"started", TimeText(cluster.start_time())});
  for (const std::string& warning : cluster.warnings()) table.Add({"warning", warning});
  table.Add({"workers", absl::StrCat(cluster.workers())});
  for (const auto& [state, count] : std::map<std::string, std::int64_t>(
           cluster.jobs_by_state().begin(), cluster.jobs_by_state().end())) {
    table.Add({absl::StrCat("jobs ", state), absl::StrCat(count)});
  }
  AddErrors("forecasts of starts", cluster.start_errors(), table);
  AddErrors("forecasts of ends", cluster.end_errors(), table);
  if (cluster.lost_files() > 0) {
    table.Add({"lost", absl::StrCat(cluster.lost_files(), " files and folders, ",
                                    BytesText(cluster.lost_bytes()), ", in lost/")});
  }
  table.PrintFields(std::cout, TerminalColumns());
  if (cluster.groups_size() > 0) {
    std::cout << "\n";
    PrintGroups(cluster);
  }
  return status;
}

absl::Status ListWorkers(Session& session) {
  lorad::v1::ListWorkersResponse response;
  const auto status =
      Call(session, &Cluster::Stub::ListWorkers, lorad::v1::ListWorkersRequest(), response);
  if (!status.ok()) return status;
  Table table({"WORKER", "STATE", "HOST", "DEVICE", "NAME", "MEMORY", "PEAK", "THREADS",
               "TRANSPORT", "GROUP", "STAGE", "PID", "RESTARTS", "LIES", "CONNECTED"});
  for (const Worker& worker : response.workers()) {
    if (session.json) std::cout << ToJson(worker) << "\n";
    table.Add({worker.name(), Worker::State_Name(worker.state()), worker.host(), worker.device(),
               worker.device_name(), BytesText(worker.memory_bytes()),
               BytesText(worker.peak_resident_bytes()), absl::StrCat(worker.threads()),
               worker.transport(), worker.group().empty() ? "-" : worker.group(),
               worker.stages() > 0 ? absl::StrCat(worker.stage(), " of ", worker.stages()) : "-",
               absl::StrCat(worker.pid()), absl::StrCat(worker.restarts()),
               absl::StrCat(worker.lies()), TimeText(worker.connect_time())});
  }
  if (session.json) return status;
  table.PrintFit(std::cout, TerminalColumns(), {0, 1, 5, 3, 8, 4, 9, 11, 13, 2, 6, 12, 7, 10});
  for (const Worker& worker : response.workers()) {
    if (worker.drained()) {
      std::cout << "\nworker '" << worker.name() << "' is drained since "
                << TimeText(worker.drain_time()) << ": " << worker.drain_reason() << "\n";
    }
    for (const std::string& what : {worker.resting(), SpeedText(worker)}) {
      if (!what.empty()) std::cout << "\nworker '" << worker.name() << "' " << what << "\n";
    }
  }
  return status;
}

// ---- draining ----

void Print(const Session& session, const Worker& worker) {
  if (session.json) std::cout << ToJson(worker) << "\n";
  if (!session.json) {
    std::cerr << worker.name() << ": " << Worker::State_Name(worker.state()) << "\n";
  }
}

// The worker as it stands now; WORKER_NOT_FOUND where it has been forgotten.
absl::Status Look(Session& session, Worker& worker) {
  lorad::v1::ListWorkersResponse response;
  const auto status =
      Call(session, &Cluster::Stub::ListWorkers, lorad::v1::ListWorkersRequest(), response);
  if (!status.ok()) return status;
  for (const Worker& listed : response.workers()) {
    if (listed.name() != worker.name()) continue;
    worker = listed;
    return status;
  }
  return Error("WORKER_NOT_FOUND",
               absl::StrCat("there is no worker '", worker.name(), "' any more"));
}

// Jobs that have not left it; -1 where the daemon does not say.
int JobsOn(Session& session, const Worker& worker) {
  ClusterStatus cluster;
  const auto status =
      Call(session, &Cluster::Stub::GetCluster, lorad::v1::GetClusterRequest(), cluster);
  if (!status.ok()) return -1;
  for (const auto& group : cluster.groups()) {
    if (group.name() == worker.group()) return group.jobs_size();
  }
  return 0;
}

// Until it is DRAINED. A line on stderr whenever fewer jobs are left. A daemon that is started again
// meanwhile still knows that it is drained.
absl::Status WaitUntilDrained(Session& session, Worker& worker) {
  int told = -1;
  bool lost = false;
  for (;; std::this_thread::sleep_for(kLookEvery)) {
    if (auto status = Look(session, worker); !status.ok()) {
      if (ReasonOf(status) != "UNREACHABLE") return status;
      if (!std::exchange(lost, true)) {
        std::cerr << "lora: lost " << session.server << "; trying again" << std::endl;
      }
      continue;
    }
    lost = false;
    if (worker.state() == Worker::DRAINED) return absl::OkStatus();
    if (!worker.drained()) {
      return Error("UNDRAINED", absl::StrCat("worker '", worker.name(),
                                             "' was undrained meanwhile: drain it again"));
    }
    if (worker.state() == Worker::LOST) {
      return Error("WORKER_LOST",
                   absl::StrCat("worker '", worker.name(),
                                "' is gone: what jobs it had go on elsewhere from their newest "
                                "checkpoints, and it gets none when it comes back"));
    }
    const int left = JobsOn(session, worker);
    if (left < 0 || left == told) continue;
    told = left;
    std::cerr << "lora: " << worker.name() << " is " << Worker::State_Name(worker.state()) << ", "
              << left << (left == 1 ? " job is" : " jobs are") << " left on it" << std::endl;
  }
}

absl::Status Drain(Session& session, const Options& options) {
  lorad::v1::DrainWorkerRequest request;
  request.set_name(options.worker);
  request.set_reason(options.reason);
  Worker worker;
  auto status = Call(session, &Cluster::Stub::DrainWorker, request, worker);
  if (status.ok() && options.wait) status = WaitUntilDrained(session, worker);
  if (status.ok()) Print(session, worker);
  return status;
}

absl::Status Undrain(Session& session, const Options& options) {
  lorad::v1::UndrainWorkerRequest request;
  request.set_name(options.worker);
  Worker worker;
  const auto status = Call(session, &Cluster::Stub::UndrainWorker, request, worker);
  if (status.ok()) Print(session, worker);
  return status;
}

}  // namespace

void AddClusterCommands(CLI::App& app, Session& session) {
  CLI::App& cluster =
      *app.add_subcommand("cluster", "The daemon, its groups and the count of jobs");
  const auto recording = std::make_shared<RecordingOptions>();
  CLI::Option& record = *cluster.add_option(
      "--record", recording->file,
      "Write its history into this file, for `lorad-plan schedule`, and keep it up until Ctrl-C");
  record.check(CheckFile);
  cluster.add_flag("--once", recording->once, "Write it once")->needs(&record);
  cluster
      .add_option("--share-label", recording->share_label,
                  "The label whose values are who shares the cluster fairly (default: that of the "
                  "daemon)")
      ->needs(&record);
  cluster.callback([&session, recording] {
    session.action = [&session, recording] {
      return recording->file.empty() ? Show(session) : RecordCluster(session, *recording);
    };
  });
  CLI::App& group = *app.add_subcommand("worker", "The processes that train");
  group.require_subcommand(0, 1);
  group.add_subcommand("ls", "List them")->callback([&session] {
    session.action = [&session] { return ListWorkers(session); };
  });

  const auto options = std::make_shared<Options>();
  CLI::App& drain =
      *group.add_subcommand("drain", "Take its jobs off it, saved, and give it none any more");
  drain.add_option("worker", options->worker, "Its name")->required();
  drain.add_option("--reason", options->reason, "Shown to those whose jobs wait")->required();
  drain.add_flag("--wait", options->wait, "Come back when it is empty");
  drain.callback([&session, options] {
    session.action = [&session, options] { return Drain(session, *options); };
  });

  CLI::App& undrain = *group.add_subcommand("undrain", "Give it jobs again");
  undrain.add_option("worker", options->worker, "Its name")->required();
  undrain.callback([&session, options] {
    session.action = [&session, options] { return Undrain(session, *options); };
  });
}

}  // namespace lorad::client
