// lora top

#include <CLI/CLI.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "client/calls/rpc.h"
#include "client/calls/session.h"
#include "client/live_table.h"
#include "client/text/cluster_board.h"
#include "client/text/json.h"
#include "client/text/width.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"

namespace lorad::client {
namespace {

using lorad::v1::Cluster;
using lorad::v1::Jobs;

constexpr char kLive[] = "state != SUCCEEDED AND state != FAILED AND state != CANCELLED";

absl::Status Read(Session& session, ClusterBoard& board) {
  v1::ListJobsRequest request;
  request.set_filter(kLive);
  auto status =
      ForEachPage(session, &Jobs::Stub::ListJobs, request, [&](const v1::ListJobsResponse& page) {
        v1::WatchJobsResponse news;
        for (const v1::Job& job : page.jobs()) {
          *news.mutable_job() = job;
          board.Take(news);
        }
      });
  v1::ListWorkersResponse workers;
  v1::ClusterStatus cluster;
  if (status.ok()) {
    status = Call(session, &Cluster::Stub::ListWorkers, v1::ListWorkersRequest(), workers);
  }
  if (status.ok()) {
    status = Call(session, &Cluster::Stub::GetCluster, v1::GetClusterRequest(), cluster);
  }
  board.Take(std::move(workers), std::move(cluster));
  return status;
}

void PrintJson(const ClusterBoard& board) {
  std::vector<std::string> workers, jobs;
  for (const v1::Worker& worker : board.workers().workers()) workers.push_back(ToJson(worker));
  for (const auto& [name, job] : board.jobs()) jobs.push_back(ToJson(job));
  std::cout << "{\"workers\": [" << absl::StrJoin(workers, ", ") << "], \"jobs\": ["
            << absl::StrJoin(jobs, ", ") << "]}\n";
}

absl::Status Show(Session& session) {
  if (!session.json && CanDrawOver()) return ShowLiveTable(session);
  ClusterBoard board;
  const auto status = Read(session, board);
  if (!status.ok()) return status;
  if (session.json) {
    PrintJson(board);
  } else {
    for (const std::string& line : board.Lines(0, 0)) std::cout << line << "\n";
  }
  return status;
}

}  // namespace

void AddTopCommand(CLI::App& app, Session& session) {
  app.add_subcommand("top", "Workers and live jobs: a live table on a terminal, else one table")
      ->callback([&session] { session.action = [&session] { return Show(session); }; });
}

}  // namespace lorad::client
