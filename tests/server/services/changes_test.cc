// Changes of jobs, workers and quotas while they live: every bad input, against a whole daemon.
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "server/validation/limits.h"
#include "tests/server/services/daemon_fixture.h"

namespace lorad::server {
namespace {

struct ChangesFixture : DaemonFixture {
  // "OK", or Summary of the error.
  std::string Update(const v1::UpdateJobRequest& request, v1::Job* job = nullptr) {
    Context context;
    v1::Job ignored;
    const grpc::Status status = jobs->UpdateJob(&context, request, job ? job : &ignored);
    return status.ok() ? "OK" : Summary(status);
  }
  std::string Drain(const std::string& name, const std::string& reason) {
    Context context;
    v1::DrainWorkerRequest request;
    request.set_name(name);
    request.set_reason(reason);
    v1::Worker worker;
    return Summary(cluster->DrainWorker(&context, request, &worker));
  }
  std::string SetQuota(const v1::Quota& quota, v1::Quota* set = nullptr) {
    Context context;
    v1::SetQuotaRequest request;
    *request.mutable_quota() = quota;
    v1::Quota ignored;
    const grpc::Status status = cluster->SetQuota(&context, request, set ? set : &ignored);
    return status.ok() ? "OK" : Summary(status);
  }
  std::string DeleteQuota(const std::string& label) {
    Context context;
    v1::DeleteQuotaRequest request;
    request.set_label(label);
    google::protobuf::Empty empty;
    const grpc::Status status = cluster->DeleteQuota(&context, request, &empty);
    return status.ok() ? "OK" : Summary(status);
  }
  v1::ListQuotasResponse Quotas() {
    Context context;
    v1::ListQuotasResponse response;
    REQUIRE(cluster->ListQuotas(&context, v1::ListQuotasRequest(), &response).ok());
    return response;
  }
};

v1::UpdateJobRequest Change(const std::string& job, const std::vector<std::string>& mask) {
  v1::UpdateJobRequest request;
  request.mutable_job()->set_name(job);
  for (const std::string& path : mask) request.mutable_update_mask()->add_paths(path);
  return request;
}

v1::Quota QuotaOf(const std::string& label) {
  v1::Quota quota;
  quota.set_label(label);
  return quota;
}

TEST_CASE_METHOD(ChangesFixture, "a job's priority and labels are changed by their mask") {
  const std::string name = Create();
  v1::UpdateJobRequest request = Change(name, {"priority"});
  request.mutable_job()->set_priority(7);
  (*request.mutable_job()->mutable_labels())["team"] = "unnamed by the mask";
  // Its rows are checked meanwhile, which changes its etag.
  while (Get(name).state() == v1::Job::VALIDATING) absl::SleepFor(absl::Milliseconds(5));
  request.mutable_job()->set_etag(Get(name).etag());
  v1::Job job;
  REQUIRE(Update(request, &job) == "OK");
  CHECK(job.priority() == 7);
  CHECK(job.labels().at("team") == "x");
  request = Change(name, {"labels", "priority"});
  REQUIRE(Update(request, &job) == "OK");
  CHECK(job.priority() == 0);
  CHECK(job.labels().empty());
  Context context;
  v1::CancelJobRequest cancel;
  cancel.set_name(name);
  REQUIRE(jobs->CancelJob(&context, cancel, &job).ok());
  request.mutable_job()->set_priority(-100);
  REQUIRE(Update(request, &job) == "OK");  // in every state
  CHECK(Get(name).priority() == -100);
}

TEST_CASE_METHOD(ChangesFixture, "bad updates of a job change nothing") {
  const std::string name = Create();
  REQUIRE(Becomes(name, v1::Job::QUEUED));
  const std::string etag = Get(name).etag();
  CHECK(Update(Change(name, {})) ==
        "INVALID_FIELDS update_mask: must name what is to change: priority, labels;");
  CHECK(Update(Change(name, {"priority", "base_model"})) ==
        "INVALID_FIELDS update_mask: 'base_model' cannot be changed: priority and labels can;");
  CHECK(Update(Change(name, {"*"})) ==
        "INVALID_FIELDS update_mask: '*' cannot be changed: priority and labels can;");
  v1::UpdateJobRequest request = Change(name, {"priority"});
  for (const int wrong : {kPriorityMax + 1, -kPriorityMax - 1}) {
    request.mutable_job()->set_priority(wrong);
    CHECK(Update(request) == absl::StrCat("INVALID_FIELDS job.priority: must be between -100 and "
                                          "100, got ",
                                          wrong, ";"));
  }
  request = Change(name, {"labels"});
  request.mutable_job()->set_priority(1000);  // not named by the mask
  (*request.mutable_job()->mutable_labels())["Team"] = "x";
  CHECK(Update(request).starts_with("INVALID_FIELDS labels.Team: keys must be"));
  request.mutable_job()->clear_labels();
  for (int i = 0; i <= kLabelsMax; ++i) {
    (*request.mutable_job()->mutable_labels())[absl::StrCat("k", i)] = "x";
  }
  CHECK(Update(request) == "INVALID_FIELDS labels: must be at most 64, got 65;");
  CHECK(Get(name).etag() == etag);

  request = Change(name, {"priority"});
  request.mutable_job()->set_etag("0");
  CHECK(Update(request) == "ETAG_MISMATCH");
  CHECK(Update(Change("job-nobody", {"priority"})) == "JOB_NOT_FOUND");
  CHECK(Get(name).etag() == etag);
  request.mutable_job()->set_etag(etag);
  CHECK(Update(request) == "OK");
  CHECK(Get(name).etag() == etag);  // its priority is what it was
  request.mutable_job()->set_priority(7);
  CHECK(Update(request) == "OK");
  CHECK(Update(request) == "ETAG_MISMATCH");  // it has changed by that
}

TEST_CASE_METHOD(ChangesFixture, "jobs that are not there are not paused") {
  Context first, second;
  v1::PauseJobRequest pause;
  v1::ResumeJobRequest resume;
  v1::Job job;
  CHECK(Summary(jobs->PauseJob(&first, pause, &job)) == "JOB_NOT_FOUND");
  CHECK(Summary(jobs->ResumeJob(&second, resume, &job)) == "JOB_NOT_FOUND");
}

TEST_CASE_METHOD(ChangesFixture, "a worker is drained by its name and for a reason") {
  const std::string wrong =
      "INVALID_FIELDS reason: must have at most 200 bytes, got 201: jobs that wait, and tables, "
      "show it;";
  CHECK(Drain("w", std::string(201, 'x')) == wrong);
  CHECK(Drain("w", "").starts_with("INVALID_FIELDS reason: must be 1 to 200 bytes"));
  for (const char* reason : {"\x1b[31mred", "two\nlines", "\u202eback"}) {
    CHECK(Drain("w", reason).starts_with("INVALID_FIELDS reason: must not hold "));
  }
  CHECK(Drain("w", "a new disk") == "WORKER_NOT_FOUND");
  CHECK(Drain("", "a new disk") == "WORKER_NOT_FOUND");
  Context context;
  v1::UndrainWorkerRequest request;
  request.set_name("w");
  v1::Worker worker;
  CHECK(Summary(cluster->UndrainWorker(&context, request, &worker)) == "WORKER_NOT_FOUND");
}

TEST_CASE_METHOD(ChangesFixture, "a quota is set, shown with its use, and deleted") {
  const std::string name = Create();
  REQUIRE(Becomes(name, v1::Job::QUEUED));
  v1::Quota quota = QuotaOf("team=x");
  quota.set_queued_jobs(1);
  quota.add_use()->set_running_jobs(99);  // the service's to say
  v1::Quota set;
  REQUIRE(SetQuota(quota, &set) == "OK");
  REQUIRE(set.use_size() == 1);
  CHECK(set.use(0).running_jobs() == 0);
  CHECK(set.use(0).queued_jobs() == 1);
  CHECK_FALSE(set.has_running_jobs());
  Context context;
  v1::Job job;
  const grpc::Status status = jobs->CreateJob(&context, Request(), &job);
  CHECK(status.error_code() == grpc::RESOURCE_EXHAUSTED);
  CHECK(Summary(status) == "QUOTA_EXCEEDED");
  google::rpc::Status wire;
  wire.ParseFromString(status.error_details());
  google::rpc::QuotaFailure failure;
  REQUIRE(wire.details_size() == 2);
  REQUIRE(wire.details(1).UnpackTo(&failure));
  REQUIRE(failure.violations_size() == 1);
  CHECK(failure.violations(0).subject() == "team=x queued_jobs");
  CHECK(failure.violations(0).description() == "quota team=x: 1 of 1 job is queued");
  // Over a restart, too.
  daemon.reset();
  Start();
  REQUIRE(Quotas().quotas_size() == 1);
  CHECK(Quotas().quotas(0).queued_jobs() == 1);
  CHECK(Quotas().quotas(0).use(0).queued_jobs() == 1);
  CHECK(DeleteQuota("team=x") == "OK");
  CHECK(Quotas().quotas_size() == 0);
  CHECK(DeleteQuota("team=x") == "QUOTA_NOT_FOUND");
  Create();
}

TEST_CASE_METHOD(ChangesFixture, "bad quotas are refused, with every mistake") {
  CHECK(
      SetQuota(QuotaOf("")) ==
      "INVALID_FIELDS quota.label: must be KEY=VALUE, or KEY=* for each value by itself, got '';");
  CHECK(SetQuota(QuotaOf("team")).starts_with("INVALID_FIELDS quota.label: must be KEY=VALUE"));
  CHECK(SetQuota(QuotaOf("=math")).starts_with("INVALID_FIELDS quota.label: keys must have 1 to"));
  CHECK(SetQuota(QuotaOf("Team=math")).starts_with("INVALID_FIELDS quota.label: keys must be"));
  CHECK(SetQuota(QuotaOf("team=" + std::string(257, 'x'))).starts_with("INVALID_FIELDS quota."));
  CHECK(SetQuota(QuotaOf("team=a\nb")).starts_with("INVALID_FIELDS quota.label: must not hold"));
  v1::Quota quota = QuotaOf("team=math");
  quota.set_running_jobs(-1);
  quota.set_queued_jobs(-2);
  quota.set_stored_bytes(-3);
  CHECK(SetQuota(quota) ==
        "INVALID_FIELDS quota.running_jobs: must not be negative, got -1 (unset: no limit);"
        " quota.queued_jobs: must not be negative, got -2 (unset: no limit);"
        " quota.stored_bytes: must not be negative, got -3 (unset: no limit);");
  CHECK(DeleteQuota("team").starts_with("INVALID_FIELDS label: must be KEY=VALUE"));
  CHECK(Quotas().quotas_size() == 0);
  for (int i = 0; i < kQuotasMax; ++i) {
    REQUIRE(SetQuota(QuotaOf(absl::StrCat("user=", i))) == "OK");
  }
  CHECK(SetQuota(QuotaOf("user=*")) == "TOO_MANY_QUOTAS");
  CHECK(SetQuota(QuotaOf("user=7")) == "OK");  // takes the place of the one that it has
}

}  // namespace
}  // namespace lorad::server
