// Services that a script plays: jobs, and a cluster of one worker.
#pragma once

#include <grpcpp/grpcpp.h>

#include <deque>
#include <string>
#include <vector>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "tests/client/run_command.h"

namespace lorad::client {

using v1::Job;
using v1::Worker;
using GrpcContext = grpc::ServerContext;

inline grpc::Status Refused(grpc::StatusCode code, const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  google::rpc::Status status;
  status.set_code(code);
  status.add_details()->PackFrom(info);
  return {code, "as the script says", status.SerializeAsString()};
}

// One job, whose etag another client changes before the first `races` updates.
struct FakeJobs final : v1::Jobs::Service {
  Job job;
  int races = 0;
  std::vector<v1::UpdateJobRequest> updates;
  std::vector<std::string> paused;
  std::deque<Job> watched;
  std::string filter;
  std::vector<Job> named;  // what is asked for by display name
  std::string absent;      // a job that is not there
  v1::JobEstimate estimate;

  FakeJobs() {
    job.set_name("job-a");
    job.set_etag("1");
    (*job.mutable_labels())["team"] = "math";
  }
  grpc::Status GetJob(GrpcContext*, const v1::GetJobRequest* request, Job* response) override {
    if (request->name() == absent) return Refused(grpc::NOT_FOUND, "JOB_NOT_FOUND");
    *response = job;
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    filter = request->filter();
    if (filter.starts_with("display_name")) {
      for (const Job& one : named) {
        if (filter != "display_name = \"" + one.display_name() + "\"") continue;
        *response->add_jobs() = one;
      }
      return grpc::Status::OK;
    }
    *response->add_jobs() = job;
    return grpc::Status::OK;
  }
  grpc::Status UpdateJob(GrpcContext*, const v1::UpdateJobRequest* request,
                         Job* response) override {
    updates.push_back(*request);
    if (races > 0) {
      --races;
      (*job.mutable_labels())["raced"] = std::to_string(races);
      job.set_etag(job.etag() + "1");
    }
    if (!request->job().etag().empty() && request->job().etag() != job.etag()) {
      return Refused(grpc::ABORTED, "ETAG_MISMATCH");
    }
    for (const std::string& path : request->update_mask().paths()) {
      if (path == "labels") *job.mutable_labels() = request->job().labels();
      if (path == "priority") job.set_priority(request->job().priority());
    }
    *response = job;
    return grpc::Status::OK;
  }
  grpc::Status PauseJob(GrpcContext*, const v1::PauseJobRequest* request, Job* response) override {
    if (request->name() == "job-done" || request->name() == "job-ended")
      return Refused(grpc::FAILED_PRECONDITION, "JOB_ENDED");
    paused.push_back(request->name());
    response->set_name(request->name());
    response->set_state(Job::PAUSING);
    return grpc::Status::OK;
  }
  grpc::Status CancelJob(GrpcContext*, const v1::CancelJobRequest*, Job* response) override {
    *response = job;
    if (job.state() != Job::SUCCEEDED) response->set_state(Job::CANCELLING);
    return grpc::Status::OK;
  }
  grpc::Status FinishJob(GrpcContext*, const v1::FinishJobRequest* request,
                         Job* response) override {
    if (request->name() == "job-done") {
      return Refused(grpc::FAILED_PRECONDITION, "NOTHING_TRAINED");
    }
    response->set_name(request->name());
    response->set_state(Job::RUNNING);
    response->set_finish_step(7);
    response->set_total_steps(20);
    return grpc::Status::OK;
  }
  grpc::Status EstimateJob(GrpcContext*, const v1::EstimateJobRequest*,
                           v1::JobEstimate* response) override {
    *response = estimate;
    return grpc::Status::OK;
  }
  grpc::Status ResumeJob(GrpcContext*, const v1::ResumeJobRequest* request,
                         Job* response) override {
    response->set_name(request->name());
    response->set_state(Job::QUEUED);
    return grpc::Status::OK;
  }
  grpc::Status WatchJobs(GrpcContext*, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    v1::WatchJobsResponse response;
    for (const Job& change : watched) {
      *response.mutable_job() = change;
      response.set_revision(response.revision() + 1);
      writer->Write(response);
    }
    response.clear_job();
    if (request->bookmarks()) writer->Write(response);
    return grpc::Status::OK;
  }
};

// The worker "w", as it stands at one look after the other; the last one stays.
struct FakeCluster final : v1::Cluster::Service {
  std::deque<Worker> looks;
  std::vector<Worker> beside;          // others, that stay as they are
  std::vector<v1::GroupStage> stages;  // of its group
  int jobs = 0;
  int away = 0;  // so many looks but the first find nobody
  std::string reason;
  std::string warning;
  v1::Quota set;
  std::vector<v1::Quota> quotas;
  std::string deleted;
  v1::GetTraceRequest traced;
  v1::Trace trace;

  grpc::Status DrainWorker(GrpcContext*, const v1::DrainWorkerRequest* request,
                           Worker* response) override {
    if (request->name() != "w") return Refused(grpc::NOT_FOUND, "WORKER_NOT_FOUND");
    reason = request->reason();
    *response = looks.front();
    return grpc::Status::OK;
  }
  grpc::Status UndrainWorker(GrpcContext*, const v1::UndrainWorkerRequest*,
                             Worker* response) override {
    response->set_name("w");
    response->set_state(Worker::IDLE);
    return grpc::Status::OK;
  }
  grpc::Status ListWorkers(GrpcContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    if (away > 0 && looks.size() == 1) {
      --away;
      return {grpc::UNAVAILABLE, "Connection refused"};
    }
    *response->add_workers() = looks.front();
    for (const Worker& worker : beside) *response->add_workers() = worker;
    if (looks.size() > 1) looks.pop_front();
    return grpc::Status::OK;
  }
  grpc::Status GetCluster(GrpcContext*, const v1::GetClusterRequest*,
                          v1::ClusterStatus* response) override {
    v1::Group& group = *response->add_groups();
    group.set_name("group-1");
    if (!warning.empty()) response->add_warnings(warning);
    for (int i = 0; i < jobs; ++i) group.add_jobs("job-" + std::to_string(i));
    if (jobs > 0) --jobs;
    for (const v1::GroupStage& stage : stages) *group.add_stages() = stage;
    return grpc::Status::OK;
  }
  grpc::Status GetTrace(GrpcContext*, const v1::GetTraceRequest* request,
                        v1::Trace* response) override {
    if (request->job() != "job-a") return Refused(grpc::NOT_FOUND, "JOB_NOT_FOUND");
    traced = *request;
    *response = trace;
    return grpc::Status::OK;
  }
  grpc::Status SetQuota(GrpcContext*, const v1::SetQuotaRequest* request,
                        v1::Quota* response) override {
    *response = set = request->quota();
    return grpc::Status::OK;
  }
  grpc::Status ListQuotas(GrpcContext*, const v1::ListQuotasRequest*,
                          v1::ListQuotasResponse* response) override {
    for (const v1::Quota& quota : quotas) *response->add_quotas() = quota;
    return grpc::Status::OK;
  }
  grpc::Status DeleteQuota(GrpcContext*, const v1::DeleteQuotaRequest* request,
                           google::protobuf::Empty*) override {
    deleted = request->label();
    return grpc::Status::OK;
  }
};

inline Worker Standing(Worker::State state) {
  Worker worker;
  worker.set_name("w");
  worker.set_state(state);
  worker.set_group(state == Worker::DRAINING ? "group-1" : "");
  worker.set_drained(true);
  worker.set_drain_reason("a new disk");
  return worker;
}

struct Fixture {
  FakeJobs jobs;
  FakeCluster cluster;
  Served served{{&jobs, &cluster}};

  Ran Run(const std::string& arguments, bool json = false) const {
    return served.Run(arguments, json);
  }
};

inline bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace lorad::client
