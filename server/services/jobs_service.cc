#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "server/services/backend.h"
#include "server/services/call.h"
#include "server/services/job_references.h"
#include "server/services/services.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int kRevisionsPerWait = 256;
constexpr absl::Duration kWatchWait = absl::Seconds(1);  // how late a client that left is noticed
constexpr absl::Duration kWorkerPatience = absl::Seconds(5);  // until an own worker has connected
constexpr size_t kPageBytesMax = 3 << 20;  // clients take messages of 4 MiB by default

class JobsService final : public v1::Jobs::Service {
 public:
  explicit JobsService(Backend& backend) : backend_(backend) {}

  grpc::Status CreateJob(grpc::ServerContext* context, const v1::CreateJobRequest* request,
                         v1::Job* response) override {
    absl::Status status =
        RequestCheck().Field("request_id", CheckRequestId(request->request_id())).status();
    if (!status.ok()) return ToGrpc(status);
    server::CreateJob create;
    create.job = request->job();
    create.validate_only = request->validate_only();
    create.request_id = {request->request_id(), DeterministicBytes(request->job())};
    status = CompleteAgainst(backend_.driver, create.job);
    if (!status.ok()) return ToGrpc(status);
    return Answer(backend_.driver.Ask<v1::Job>(std::move(create), DeadlineOf(*context)), response);
  }

  grpc::Status GetJob(grpc::ServerContext* context, const v1::GetJobRequest* request,
                      v1::Job* response) override {
    return Answer(backend_.driver.Ask<v1::Job>(*request, DeadlineOf(*context)), response);
  }

  grpc::Status ListJobs(grpc::ServerContext* context, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    v1::ListJobsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return ToGrpc(status);
    if (absl::StatusOr<JobFilter> filter = JobFilter::Parse(page.filter()); !filter.ok()) {
      return ToGrpc(filter.status());
    }
    while (true) {
      absl::StatusOr<v1::ListJobsResponse> jobs =
          backend_.driver.Ask<v1::ListJobsResponse>(page, DeadlineOf(*context));
      const bool fits = !jobs.ok() || jobs->ByteSizeLong() <= kPageBytesMax;
      if (fits || page.page_size() == 1) return Answer(std::move(jobs), response);
      page.set_page_size(std::max(1, page.page_size() / 4));  // jobs with many labels
    }
  }

  grpc::Status DeleteJob(grpc::ServerContext* context, const v1::DeleteJobRequest* request,
                         google::protobuf::Empty*) override {
    return ToGrpc(backend_.driver.Call(*request, DeadlineOf(*context)).status());
  }

  grpc::Status CancelJob(grpc::ServerContext* context, const v1::CancelJobRequest* request,
                         v1::Job* response) override {
    return Answer(backend_.driver.Ask<v1::Job>(*request, DeadlineOf(*context)), response);
  }

  grpc::Status WatchJobs(grpc::ServerContext* context, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    return ToGrpc(Watch(*context, *request, *writer));
  }

  grpc::Status ListEvents(grpc::ServerContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    v1::ListEventsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return ToGrpc(status);
    return Answer(backend_.driver.ListEvents(page), response);
  }

  grpc::Status GetMetrics(grpc::ServerContext*, const v1::GetMetricsRequest* request,
                          v1::GetMetricsResponse* response) override {
    v1::GetMetricsRequest page = *request;
    absl::Status status = CompletePage(page, kMetricsPageSizeMax, kMetricsPageSizeDefault);
    if (!status.ok()) return ToGrpc(status);
    if (!v1::GetMetricsRequest::Series_IsValid(page.series())) {
      return ToGrpc(InvalidFields("request", {{"series", "must be TRAINING or EVALUATION"}}));
    }
    return Answer(backend_.driver.GetMetrics(page), response);
  }

  grpc::Status EstimateJob(grpc::ServerContext* context, const v1::EstimateJobRequest* request,
                           v1::JobEstimate* response) override {
    server::EstimateJob estimate;
    estimate.job = request->job();
    absl::Status status = CompleteAgainst(backend_.driver, estimate.job);
    if (!status.ok()) return ToGrpc(status);
    // Right after the start the daemon's own workers are about to connect, and whether a job fits
    // is about them.
    if (backend_.own_workers) estimate.wait_us = absl::ToInt64Microseconds(kWorkerPatience);
    return Answer(backend_.driver.Ask<v1::JobEstimate>(std::move(estimate), DeadlineOf(*context)),
                  response);
  }

 private:
  absl::Status Watch(grpc::ServerContext& context, const v1::WatchJobsRequest& request,
                     grpc::ServerWriter<v1::WatchJobsResponse>& writer) {
    if (request.names_size() > kWatchNamesMax) {
      return InvalidFields("request", {{"names", absl::StrCat("must be at most ", kWatchNamesMax,
                                                              ", got ", request.names_size())}});
    }
    if (request.resume_from_revision() < 0) {
      return InvalidFields("request", {{"resume_from_revision", "must not be negative"}});
    }
    absl::StatusOr<Gate::Pass> pass = backend_.watches.Enter();
    if (!pass.ok()) return pass.status();
    const std::set<std::string> names(request.names().begin(), request.names().end());
    absl::StatusOr<JobSnapshot> snapshot = backend_.driver.Ask<JobSnapshot>(
        SnapshotJobs{{names.begin(), names.end()}}, DeadlineOf(context));
    if (!snapshot.ok()) return snapshot.status();
    writer.SendInitialMetadata();  // the client knows that it is heard, also where nothing happens
    int64_t revision = request.resume_from_revision();
    if (revision == 0) {
      revision = snapshot->revision;
      if (!WriteSnapshot(*std::move(snapshot), writer)) return absl::OkStatus();
    }
    return Follow(context, names, revision, writer);
  }

  // In the order of the jobs' newest revisions, each under its own: a client that lost the stream
  // in mid-snapshot resumes from the last that it saw, and gets the rest as changes. False when the
  // client has gone.
  static bool WriteSnapshot(JobSnapshot snapshot,
                            grpc::ServerWriter<v1::WatchJobsResponse>& writer) {
    std::sort(snapshot.jobs.begin(), snapshot.jobs.end(),
              [](const v1::Job& a, const v1::Job& b) { return a.revision() < b.revision(); });
    for (v1::Job& job : snapshot.jobs) {
      v1::WatchJobsResponse response;
      response.set_revision(job.revision());
      *response.mutable_job() = std::move(job);
      if (!writer.Write(response)) return false;
    }
    return true;
  }

  absl::Status Follow(grpc::ServerContext& context, const std::set<std::string>& names,
                      int64_t revision, grpc::ServerWriter<v1::WatchJobsResponse>& writer) {
    while (!context.IsCancelled()) {
      auto changes =
          backend_.driver.revisions().Wait(revision, kRevisionsPerWait, absl::Now() + kWatchWait);
      if (backend_.stopping) {
        return Unavailable("SHUTTING_DOWN", "the daemon stops: watch again in a while", 2000);
      }
      if (!changes.ok()) return changes.status();
      for (const auto& change : *changes) {
        revision = change->revision;
        if (!names.empty() && names.count(change->job) == 0) continue;
        v1::WatchJobsResponse response;
        const bool parsed = response.ParseFromString(change->message);
        assert(parsed);
        (void)parsed;
        if (!writer.Write(response)) return absl::OkStatus();
      }
    }
    return absl::CancelledError("the client ended the watch");
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobsService(Backend& backend) {
  return std::make_unique<JobsService>(backend);
}

}  // namespace lorad::server
