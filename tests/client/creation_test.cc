// The commands that create jobs, against a service that keeps what it is asked.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "lorad/v1/jobs.grpc.pb.h"
#include "tests/client/run_command.h"

namespace lorad::client {
namespace {

using v1::Job;
using GrpcContext = grpc::ServerContext;

struct FakeJobs final : v1::Jobs::Service {
  Job job;
  std::vector<v1::CreateJobRequest> created;
  std::vector<v1::EstimateJobRequest> estimated;

  grpc::Status GetJob(GrpcContext*, const v1::GetJobRequest* request, Job* response) override {
    if (request->name() != job.name()) return {grpc::NOT_FOUND, "no such job"};
    *response = job;
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (request->filter() == "display_name = \"sums\"") *response->add_jobs() = job;
    return grpc::Status::OK;
  }
  grpc::Status EstimateJob(GrpcContext*, const v1::EstimateJobRequest* request,
                           v1::JobEstimate* response) override {
    estimated.push_back(*request);
    if (request->job().base_model() != "small") return {grpc::NOT_FOUND, "no such model"};
    response->set_total_steps(7);
    return grpc::Status::OK;
  }
  grpc::Status CreateJob(GrpcContext*, const v1::CreateJobRequest* request,
                         Job* response) override {
    created.push_back(*request);
    *response = request->job();
    response->set_name("job-22222222");
    return grpc::Status::OK;
  }
};

struct Fixture {
  FakeJobs jobs;
  Served served{{&jobs}};
  std::string out;

  Fixture() {
    Job& job = jobs.job;
    job.set_name("job-11111111");
    job.set_display_name("sums");
    job.set_base_model("small");
    job.set_training_dataset("rows");
    job.mutable_adapter()->set_rank(4);
    job.mutable_adapter()->add_target_modules("q_proj");
    job.mutable_adapter()->add_modules()->set_target("q_proj");
    job.mutable_training()->set_learning_rate(2e-4);
    job.mutable_training()->set_seed(18446744073709551615u);
    (*job.mutable_labels())["team"] = "math";
    job.set_state(Job::RUNNING);
    job.mutable_create_time()->set_seconds(1800000000);
    job.set_etag("7");
    job.set_step(3);
    job.add_warnings("rows are cut");
  }

  // As `lora ARGUMENTS`: "OK", "USAGE" or the error's reason.
  std::string Run(const std::string& arguments, bool json = false) {
    Ran ran = served.Run(arguments, json);
    out = std::move(ran.out);
    return ran.reason;
  }

  // What the client said of the job, without what the service did.
  Job Input() const {
    Job job = jobs.job;
    job.clear_name();
    job.mutable_adapter()->clear_modules();
    job.clear_state();
    job.clear_create_time();
    job.clear_etag();
    job.clear_step();
    job.clear_warnings();
    return job;
  }
};

TEST_CASE_METHOD(Fixture, "a clone is the same job, but for what is set") {
  CHECK(Run("clone sums") == "OK");
  CHECK(out == "job-22222222\n");
  REQUIRE(jobs.created.size() == 1);
  Job nameless = Input();
  nameless.clear_display_name();
  CHECK(jobs.created[0].job().SerializeAsString() == nameless.SerializeAsString());

  CHECK(Run("clone --set training.learning_rate=1e-3 job-11111111 --set adapter.r=8 "
            "--set display_name=faster "
            "--validate-only --request-id again") == "OK");
  REQUIRE(jobs.created.size() == 2);
  Job set = Input();
  set.mutable_training()->set_learning_rate(1e-3);
  set.mutable_adapter()->set_rank(8);
  set.set_display_name("faster");
  CHECK(jobs.created[1].job().SerializeAsString() == set.SerializeAsString());
  CHECK(jobs.created[1].validate_only());
  CHECK(jobs.created[1].request_id() == "again");

  CHECK(Run("clone sums --set training.learning_rat=1") == "BAD_JOB_FILE");
  CHECK(Run("clone sums --set rank") == "USAGE");
  CHECK(Run("clone nobody") == "NOT_FOUND");
  CHECK(Run("clone") == "USAGE");
  CHECK(jobs.created.size() == 2);
}

TEST_CASE_METHOD(Fixture, "a name that another job has is warned of") {
  constexpr char kSaid[] =
      "warning: job-11111111 has the name 'sums', too: commands find each by its id alone\n";
  const auto said = [&](const std::string& more) {
    return served.Run("clone job-11111111 " + more).err;
  };
  CHECK(said("").empty());
  CHECK(said("--set display_name=other").empty());
  CHECK(said("--set display_name=sums") == kSaid);
  CHECK(said("--set display_name=sums --validate-only").ends_with(kSaid));
  jobs.job.set_name("job-22222222");  // as a repeated call is answered with it
  CHECK(served.Run("clone job-22222222 --set display_name=sums").err.empty());
}

TEST_CASE_METHOD(Fixture, "the daemon counts the steps of an epoch") {
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/epoch.json";
  std::ofstream(file) << R"({"base_model": "small", "validation_dataset": "rows", "training":
      {"max_steps": 9, "epochs": 3, "eval_strategy": "epoch", "checkpoint_keep_best": 1}})";
  CHECK(Run("submit -f " + file) == "OK");
  REQUIRE(jobs.estimated.size() == 1);
  const v1::TrainingConfig& epoch = jobs.estimated[0].job().training();
  CHECK(epoch.epochs() == 1);
  CHECK(epoch.max_steps() == 0);
  CHECK(epoch.eval_every_steps() == 1);
  REQUIRE(jobs.created.size() == 1);
  const v1::TrainingConfig& created = jobs.created[0].job().training();
  CHECK(created.epochs() == 3);
  CHECK(created.max_steps() == 9);
  CHECK(created.eval_every_steps() == 7);
  CHECK_FALSE(created.has_checkpoint_every_steps());

  CHECK(Run("submit --set training.eval_steps=2 -f " + file) == "OK");
  CHECK(jobs.estimated.size() == 1);
  CHECK(Run("clone sums --set training.save_strategy=epoch") == "OK");
  CHECK(jobs.estimated.size() == 2);
  REQUIRE(jobs.created.size() == 3);
  CHECK(jobs.created[1].job().training().eval_every_steps() == 2);
  CHECK(jobs.created[2].job().training().checkpoint_every_steps() == 7);
  CHECK(Run("estimate -f " + file) == "OK");
  REQUIRE(jobs.estimated.size() == 4);
  CHECK(jobs.estimated[3].job().training().eval_every_steps() == 7);
  CHECK(Run("submit --set base_model=none -f " + file) == "NOT_FOUND");
  CHECK(jobs.created.size() == 3);
}

TEST_CASE_METHOD(Fixture, "what show prints as JSON is submitted again") {
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/shown.json";
  CHECK(Run("show sums", true) == "OK");
  std::ofstream(file) << out;
  CHECK(Run("submit -f " + file) == "OK");
  REQUIRE(jobs.created.size() == 1);
  Job input = Input();
  CHECK(jobs.created[0].job().SerializeAsString() == input.SerializeAsString());

  CHECK(Run("submit --set labels.team=art --set priority=2 -f " + file) == "OK");
  REQUIRE(jobs.created.size() == 2);
  (*input.mutable_labels())["team"] = "art";
  input.set_priority(2);
  CHECK(jobs.created[1].job().SerializeAsString() == input.SerializeAsString());
  CHECK(Run("submit --set priority=high -f " + file) == "BAD_JOB_FILE");
  CHECK(jobs.created.size() == 2);
}

}  // namespace
}  // namespace lorad::client
