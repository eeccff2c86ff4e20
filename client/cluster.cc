// lora cluster | worker ls

#include <CLI/CLI.hpp>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/json.h"
#include "client/table.h"
#include "lorad/v1/cluster.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Cluster;
using lorad::v1::ClusterStatus;
using lorad::v1::Worker;

void PrintGroups(const ClusterStatus& cluster) {
  Table groups({"GROUP", "EPOCH", "MODEL", "WORKERS", "JOBS", "CAPACITY", "WINDOWS", "MICROBATCHES",
                "ADAPTERS/MICROBATCH", "TOKENS/S", "RESERVED"});
  for (const auto& group : cluster.groups()) {
    groups.Add({group.name(), absl::StrCat(group.epoch()), group.base_model(),
                absl::StrCat(group.workers_size()), absl::StrCat(group.jobs_size()),
                absl::StrCat(group.capacity_tokens()), absl::StrCat(group.windows()),
                absl::StrCat(group.microbatches()),
                absl::StrFormat("%.2f", group.adapters_per_microbatch()),
                CountText(group.tokens_per_second()), BytesText(group.reserved_bytes())});
  }
  groups.Print(std::cout);
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
  Table table({"FIELD", "VALUE"});
  table.Add({"version", cluster.version()});
  table.Add({"started", TimeText(cluster.start_time())});
  table.Add({"workers", absl::StrCat(cluster.workers())});
  for (const auto& [state, count] : std::map<std::string, std::int64_t>(
           cluster.jobs_by_state().begin(), cluster.jobs_by_state().end())) {
    table.Add({absl::StrCat("jobs ", state), absl::StrCat(count)});
  }
  if (cluster.lost_files() > 0) {
    table.Add({"lost", absl::StrCat(cluster.lost_files(), " files and folders, ",
                                    BytesText(cluster.lost_bytes()), ", in lost/")});
  }
  table.Print(std::cout);
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
  Table table({"WORKER", "STATE", "DEVICE", "NAME", "MEMORY", "THREADS", "GROUP", "PID", "RESTARTS",
               "LIES", "CONNECTED"});
  for (const Worker& worker : response.workers()) {
    if (session.json) std::cout << ToJson(worker) << "\n";
    table.Add({worker.name(), Worker::State_Name(worker.state()), worker.device(),
               worker.device_name(), BytesText(worker.memory_bytes()),
               absl::StrCat(worker.threads()), worker.group().empty() ? "-" : worker.group(),
               absl::StrCat(worker.pid()), absl::StrCat(worker.restarts()),
               absl::StrCat(worker.lies()), TimeText(worker.connect_time())});
  }
  if (session.json) return status;
  table.Print(std::cout);
  for (const Worker& worker : response.workers()) {
    if (worker.resting().empty()) continue;
    std::cout << "\nworker '" << worker.name() << "' " << worker.resting() << "\n";
  }
  return status;
}

}  // namespace

void AddClusterCommands(CLI::App& app, Session& session) {
  app.add_subcommand("cluster", "The daemon, its groups and the count of jobs")
      ->callback([&session] { session.action = [&session] { return Show(session); }; });
  CLI::App& group = *app.add_subcommand("worker", "The processes that train");
  group.require_subcommand(0, 1);
  group.add_subcommand("ls", "List them")->callback([&session] {
    session.action = [&session] { return ListWorkers(session); };
  });
}

}  // namespace lorad::client
