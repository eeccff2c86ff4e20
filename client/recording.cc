#include "client/recording.h"

#include <chrono>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

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

absl::Status TakeEvents(Session& session, const std::string& job, Record& record) {
  v1::ListEventsRequest request;
  request.set_job(job);
  std::vector<v1::Event> events;
  const auto status = ForEachPage<v1::Jobs::Stub, v1::ListEventsRequest, v1::ListEventsResponse>(
      session, &v1::Jobs::Stub::ListEvents, request, [&](const v1::ListEventsResponse& page) {
        events.insert(events.end(), page.events().begin(), page.events().end());
      });
  if (!status.ok() && !absl::IsNotFound(status)) return status;
  record.Take(job, events);
  return absl::OkStatus();
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
  status = ForEachPage<v1::Jobs::Stub, v1::ListJobsRequest, v1::ListJobsResponse>(
      session, &v1::Jobs::Stub::ListJobs, {}, [&](const v1::ListJobsResponse& page) {
        for (const v1::Job& job : page.jobs()) record.Take(job);
      });
  for (const std::string& job : record.JobsThatLeft()) {
    if (!status.ok()) break;
    status = TakeEvents(session, job, record);
  }
  return status;
}

// Which keys labels may have is known to the daemon, which refuses a filter by another one; what it
// says is of the filter, which the user did not write.
absl::Status CheckShareLabel(Session& session, const std::string& label) {
  v1::ListJobsRequest request;
  request.set_filter(absl::StrCat("labels.", label, " != \"\""));
  request.set_page_size(1);
  request.set_view(v1::ListJobsRequest::SUMMARY);
  v1::ListJobsResponse response;
  const absl::Status status = Call(session, &v1::Jobs::Stub::ListJobs, request, response);
  if (!absl::IsInvalidArgument(status)) return status;
  return Error(ReasonOf(status),
               absl::StrCat("--share-label '", label,
                            "' is no key of a label: give 1 to 63 lower-case letters, digits, '.', "
                            "'_', '/' and '-'"));
}

}  // namespace

absl::Status RecordCluster(Session& session, const RecordingOptions& options) {
  if (options.share_label) {
    const absl::Status status = CheckShareLabel(session, *options.share_label);
    if (!status.ok()) return status;
  }
  Record record(options.share_label.value_or(""));
  WholeFile file(options.file);
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
    if (first && !record.has_workers()) {
      if (options.once) {
        return Error("NO_WORKERS",
                     "no worker has connected yet, and `lorad-plan` replays nothing without one: "
                     "record again once one has, or leave --once out, which waits for it");
      }
      std::cerr << "lora: no worker has connected yet; `lorad-plan` takes the file once one has\n";
    }
    if (first) {
      for (const std::string& note : record.ShareNotes()) std::cerr << "lora: " << note << "\n";
    }
    if (auto status = file.Write(record.ToText()); !status.ok()) return status;
    if (first || record.jobs() != told) {
      told = record.jobs();
      std::cerr << "lora: " << told << (told == 1 ? " job" : " jobs") << " in " << options.file
                << std::endl;
    }
    if (options.once) return absl::OkStatus();
  }
}

}  // namespace lorad::client
