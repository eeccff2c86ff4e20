// `lora cluster --record`, against services that a script plays.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"
#include "tests/client/run_command.h"
#include "tests/storage/temp_directory.h"

namespace lorad::client {
namespace {

using GrpcContext = grpc::ServerContext;
using nlohmann::json;

grpc::Status Refused() {
  google::rpc::ErrorInfo info;
  info.set_reason("INVALID_FIELDS");
  google::rpc::BadRequest bad;
  bad.add_field_violations()->set_field("filter");
  bad.mutable_field_violations(0)->set_description("column 1: keys must be ..");
  google::rpc::Status status;
  status.set_code(grpc::StatusCode::INVALID_ARGUMENT);
  status.add_details()->PackFrom(info);
  status.add_details()->PackFrom(bad);
  return {grpc::StatusCode::INVALID_ARGUMENT, "a field of the request is not valid",
          status.SerializeAsString()};
}

// A job that was moved, evicted, and placed again; its events come in two pages.
struct MovedJob final : v1::Jobs::Service {
  std::string filter;  // the newest that was given
  bool refuses = false;
  int total_steps = 10;

  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    if (!request->filter().empty()) filter = request->filter();
    if (refuses) return Refused();
    v1::Job& job = *response->add_jobs();
    job.set_name("job-a");
    job.set_base_model("small");
    job.set_state(v1::Job::RUNNING);
    job.set_attempts(3);
    job.set_step(5);
    job.set_total_steps(total_steps);
    job.set_total_tokens(1000);
    job.mutable_create_time()->set_seconds(1'800'000'000);
    job.mutable_start_time()->set_seconds(1'800'000'001);
    return grpc::Status::OK;
  }
  grpc::Status ListEvents(GrpcContext*, const v1::ListEventsRequest* request,
                          v1::ListEventsResponse* response) override {
    if (request->job() != "job-a") return {grpc::StatusCode::NOT_FOUND, "which job?"};
    const bool first = request->page_token().empty();
    response->add_events()->set_reason(first ? "MOVED" : "EVICTED");
    if (first) response->set_next_page_token("more");
    return grpc::Status::OK;
  }
};

struct OneModel final : v1::Models::Service {
  grpc::Status ListModels(GrpcContext*, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override {
    response->add_models()->set_name("small");
    return grpc::Status::OK;
  }
};

struct SharesByUser final : v1::Cluster::Service {
  grpc::Status GetCluster(GrpcContext*, const v1::GetClusterRequest*,
                          v1::ClusterStatus* response) override {
    response->mutable_policy()->set_share_label("user");
    return grpc::Status::OK;
  }
  bool has_workers = true;
  grpc::Status ListWorkers(GrpcContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    if (has_workers) response->add_workers()->set_name("w");
    return grpc::Status::OK;
  }
};

struct Fixture {
  MovedJob jobs;
  OneModel models;
  SharesByUser cluster;
  storage::TempDirectory folder;
  std::string file = folder / "history.json";
  Served served{{&jobs, &models, &cluster}};

  Ran Record(const std::string& options = "") const {
    return served.Run("cluster --once --record " + file + options);
  }
};

TEST_CASE_METHOD(Fixture, "the history has how often a job was moved and evicted") {
  CHECK(Record().err == "lora: 1 job in " + file + "\n");
  const json history = json::parse(std::ifstream(file));
  REQUIRE(history["jobs"].size() == 1);
  CHECK(history["jobs"][0]["moves"] == 1);
  CHECK(history["jobs"][0]["evictions"] == 1);
}

TEST_CASE_METHOD(Fixture, "as many jobs are counted as the history has") {
  jobs.total_steps = 0;  // its rows are not checked yet
  CHECK(Record().err == "lora: 0 jobs in " + file + "\n");
  CHECK(json::parse(std::ifstream(file))["jobs"].empty());
}

TEST_CASE_METHOD(Fixture, "a label to share by is judged by the daemon") {
  const Ran other = Record(" --share-label team");
  CHECK(other.reason == "OK");
  CHECK(jobs.filter == "labels.team != \"\"");
  CHECK(other.err ==
        "lora: the daemon shares by the label 'user' (lorad serve --share-label), the history has "
        "who shares by 'team'\nlora: no job has the label 'team'\nlora: 1 job in " +
            file + "\n");
  jobs.refuses = true;
  const Ran refused = Record(" --share-label Team");
  CHECK(refused.error ==
        "error: INVALID_FIELDS: --share-label 'Team' is no key of a label: give 1 to 63 lower-case "
        "letters, digits, '.', '_', '/' and '-'\n");
}

TEST_CASE_METHOD(Fixture, "a cluster that has had no worker yet is not recorded at once") {
  cluster.has_workers = false;
  const Ran ran = Record();
  CHECK(ran.reason == "NO_WORKERS");
  CHECK_FALSE(std::filesystem::exists(file));
}

// Without a file the command is another one, which shows the cluster.
TEST_CASE_METHOD(Fixture, "an empty path is wrong usage") {
  for (const char* command : {"cluster --record EMPTY", "cluster --once --record EMPTY"}) {
    const Ran ran = served.Run(command);
    CHECK(ran.reason == "USAGE");
    CHECK(ran.error == "--record: the path is empty: name the file that is to be written");
    CHECK(ran.out.empty());
  }
}

TEST_CASE_METHOD(Fixture, "what is no regular file stays what it is") {
  std::filesystem::create_symlink("/dev/null", file);
  CHECK(Record().reason == "OK");
  CHECK(std::filesystem::is_symlink(file));
}

}  // namespace
}  // namespace lorad::client
