#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "server/calls/backend.h"
#include "server/calls/call.h"
#include "server/calls/unary_call.h"
#include "server/services/job_references.h"
#include "server/services/services.h"
#include "server/services/watch_stream.h"
#include "server/validation/job.h"
#include "server/validation/job_filter.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr absl::Duration kWorkerPatience = absl::Seconds(5);  // until an own worker has connected
constexpr size_t kPageBytesMax = 3 << 20;  // clients take messages of 4 MiB by default

using Context = grpc::CallbackServerContext;
using Base = v1::Jobs::WithRawCallbackMethod_WatchJobs<v1::Jobs::CallbackService>;

class JobsService final : public Base {
 public:
  explicit JobsService(Backend& backend) : backend_(backend) {}

  grpc::ServerUnaryReactor* CreateJob(Context* context, const v1::CreateJobRequest* request,
                                      v1::Job* response) override {
    auto* call = new UnaryCall(backend_, context);
    absl::Status status =
        RequestCheck().Field("request_id", CheckRequestId(request->request_id())).status();
    if (!status.ok()) return call->End(status);
    server::CreateJob create;
    create.job = request->job();
    create.validate_only = request->validate_only();
    create.request_id = {request->request_id(), DeterministicBytes(request->job())};
    return Complete(call, std::move(create), [call, response](server::CreateJob complete) {
      call->Relay(std::move(complete), response);
    });
  }

  grpc::ServerUnaryReactor* GetJob(Context* context, const v1::GetJobRequest* request,
                                   v1::Job* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ListJobs(Context* context, const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListJobsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (status.ok()) status = JobFilter::Parse(page.filter()).status();
    if (!status.ok()) return call->End(status);
    return ListPage(call, std::move(page), response);
  }

  grpc::ServerUnaryReactor* DeleteJob(Context* context, const v1::DeleteJobRequest* request,
                                      google::protobuf::Empty*) override {
    return (new UnaryCall(backend_, context))->Relay(*request);
  }

  grpc::ServerUnaryReactor* CancelJob(Context* context, const v1::CancelJobRequest* request,
                                      v1::Job* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* PauseJob(Context* context, const v1::PauseJobRequest* request,
                                     v1::Job* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* ResumeJob(Context* context, const v1::ResumeJobRequest* request,
                                      v1::Job* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* FinishJob(Context* context, const v1::FinishJobRequest* request,
                                      v1::Job* response) override {
    return (new UnaryCall(backend_, context))->Relay(*request, response);
  }

  grpc::ServerUnaryReactor* UpdateJob(Context* context, const v1::UpdateJobRequest* request,
                                      v1::Job* response) override {
    auto* call = new UnaryCall(backend_, context);
    const std::vector<FieldViolation> violations = CheckUpdate(*request);
    if (!violations.empty()) return call->End(InvalidFields("request", violations));
    return call->Relay(*request, response);
  }

  grpc::ServerWriteReactor<grpc::ByteBuffer>* WatchJobs(Context* context,
                                                        const grpc::ByteBuffer* request) override {
    return new WatchStream(backend_, context, *request);
  }

  grpc::ServerUnaryReactor* ListEvents(Context* context, const v1::ListEventsRequest* request,
                                       v1::ListEventsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::ListEventsRequest page = *request;
    absl::Status status = CompletePage(page, kPageSizeMax, kPageSizeDefault);
    if (!status.ok()) return call->End(status);
    return call->Read<v1::ListEventsResponse>(
        response, [this, page] { return backend_.driver.ListEvents(page); });
  }

  grpc::ServerUnaryReactor* GetMetrics(Context* context, const v1::GetMetricsRequest* request,
                                       v1::GetMetricsResponse* response) override {
    auto* call = new UnaryCall(backend_, context);
    v1::GetMetricsRequest page = *request;
    absl::Status status = CompletePage(page, kMetricsPageSizeMax, kMetricsPageSizeDefault);
    if (status.ok() && !v1::GetMetricsRequest::Series_IsValid(page.series())) {
      status = InvalidFields("request", {{"series", "must be TRAINING or EVALUATION"}});
    }
    if (!status.ok()) return call->End(status);
    return call->Read<v1::GetMetricsResponse>(
        response, [this, page] { return backend_.driver.GetMetrics(page); });
  }

  grpc::ServerUnaryReactor* EstimateJob(Context* context, const v1::EstimateJobRequest* request,
                                        v1::JobEstimate* response) override {
    auto* call = new UnaryCall(backend_, context);
    server::EstimateJob estimate;
    estimate.job = request->job();
    estimate.name = request->name();
    // Right after the start the daemon's own workers are about to connect, and whether a job fits
    // is about them.
    if (backend_.own_workers) estimate.wait_us = absl::ToInt64Microseconds(kWorkerPatience);
    if (!estimate.name.empty()) {
      if (request->has_job()) {
        return call->End(
            InvalidFields("request", {{"name", "must be empty where there is a job"}}));
      }
      call->Relay(std::move(estimate), response);
      return call;
    }
    return Complete(call, std::move(estimate), [call, response](server::EstimateJob complete) {
      call->Relay(std::move(complete), response);
    });
  }

 private:
  // Looks up what the job's names stand for, completes it with that, and goes on with `then`.
  template <class Content, class Then>
  UnaryCall* Complete(UnaryCall* call, Content content, Then then) {
    std::vector<Request> references = ReferencesOf(content.job);
    return call->AskAll(
        std::move(references), [this, call, content, then](std::vector<Question::Answer> answers) {
          call->OnReads([this, call, content, then, answers = std::move(answers)]() mutable {
            absl::Status status = CompleteAgainst(backend_.driver, answers, content.job);
            if (!status.ok()) return (void)call->End(status);
            then(std::move(content));
          });
        });
  }

  // As many jobs of the page as fit into a message.
  UnaryCall* ListPage(UnaryCall* call, v1::ListJobsRequest page, v1::ListJobsResponse* response) {
    return call->Ask(page, [this, call, page, response](Question::Answer answer) mutable {
      if (!answer.ok()) return (void)call->End(answer.status());
      auto& jobs = std::get<v1::ListJobsResponse>(*answer);
      const bool may_be_large = page.view() != v1::ListJobsRequest::SUMMARY;
      if (may_be_large && page.page_size() > 1 && jobs.ByteSizeLong() > kPageBytesMax) {
        page.set_page_size(std::max(1, page.page_size() / 4));  // jobs with many labels
        return (void)ListPage(call, std::move(page), response);
      }
      *response = std::move(jobs);
      call->End(absl::OkStatus());
    });
  }

  Backend& backend_;
};

}  // namespace

std::unique_ptr<grpc::Service> MakeJobsService(Backend& backend) {
  return std::make_unique<JobsService>(backend);
}

}  // namespace lorad::server
