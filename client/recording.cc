#include "client/recording.h"

#include <chrono>
#include <iostream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/rpc.h"
#include "client/record.h"
#include "client/whole_file.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"

namespace lorad::client {
namespace {

constexpr std::chrono::seconds kLookEvery(5);

double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

absl::Status Look(Session& session, Record& record) {
  v1::ClusterStatus cluster;
  v1::ListWorkersResponse workers;
  absl::Status status =
      Call(session, &v1::Cluster::Stub::GetCluster, v1::GetClusterRequest(), cluster);
  if (!status.ok()) return status;
  record.Take(cluster);
  status = Call(session, &v1::Cluster::Stub::ListWorkers, v1::ListWorkersRequest(), workers);
  if (!status.ok()) return status;
  record.Take(workers, NowSeconds());
  status = ForEachPage<v1::Models::Stub, v1::ListModelsRequest, v1::ListModelsResponse>(
      session, &v1::Models::Stub::ListModels, {}, [&](const v1::ListModelsResponse& page) {
        for (const v1::Model& model : page.models()) record.Take(model);
      });
  if (!status.ok()) return status;
  return ForEachPage<v1::Jobs::Stub, v1::ListJobsRequest, v1::ListJobsResponse>(
      session, &v1::Jobs::Stub::ListJobs, {}, [&](const v1::ListJobsResponse& page) {
        for (const v1::Job& job : page.jobs()) record.Take(job);
      });
}

}  // namespace

absl::Status RecordCluster(Session& session, const RecordingOptions& options) {
  Record record(options.share_label);
  bool lost = false;
  size_t told = 0;
  for (bool first = true;; first = false, std::this_thread::sleep_for(kLookEvery)) {
    if (absl::Status status = Look(session, record); !status.ok()) {
      if (first) return status;
      if (!lost) std::cerr << "lora: lost " << session.server << "; trying again" << std::endl;
      lost = true;
      continue;
    }
    lost = false;
    if (auto status = WriteWhole(options.file, record.ToText()); !status.ok()) return status;
    if (first || record.jobs() != told) {
      told = record.jobs();
      std::cerr << "lora: " << told << (told == 1 ? " job" : " jobs") << " in " << options.file
                << std::endl;
    }
    if (options.once) return absl::OkStatus();
  }
}

}  // namespace lorad::client
