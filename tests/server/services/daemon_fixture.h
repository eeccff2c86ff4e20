// The whole daemon in this process, and what a client needs to talk to it.
#pragma once

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <string>

#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"
#include "server/serve.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {

// A daemon without workers that knows a small model "m" and a dataset of tokens "d".
struct DaemonFixture {
  DaemonFixture() {
    Start();
    Context context;
    v1::RegisterModelRequest model;
    model.set_name("m");
    model.set_path(std::filesystem::canonical("tests/golden/llama_gqa_untied/model").string());
    v1::Model registered;
    const grpc::Status status = models->RegisterModel(&context, model, &registered);
    INFO(status.error_message());
    REQUIRE(status.ok());
    std::string rows;
    for (int i = 0; i < 8; ++i) rows += "{\"input_ids\": [1, 2, 3, 4], \"labels\": [1, 2, 3, 4]}\n";
    Context second;
    v1::Dataset dataset;
    auto writer = datasets->CreateDataset(&second, &dataset);
    v1::CreateDatasetRequest message;
    message.mutable_config()->set_name("d");
    writer->Write(message);
    message.set_chunk(rows);
    writer->Write(message);
    writer->WritesDone();
    REQUIRE(writer->Finish().ok());
  }

  void Start() {
    ServeOptions options;
    options.data_dir = directory / "data";
    options.listen = "127.0.0.1:0";
    options.workers.choice.kind = WorkerChoice::Kind::kNone;
    absl::StatusOr<std::unique_ptr<Daemon>> started = Daemon::Start(options, storage::RealFiles());
    INFO(std::string(started.status().message()));
    REQUIRE(started.ok());
    daemon = *std::move(started);
    channel = grpc::CreateChannel(daemon->address().ToText(), grpc::InsecureChannelCredentials());
    jobs = v1::Jobs::NewStub(channel);
    models = v1::Models::NewStub(channel);
    datasets = v1::Datasets::NewStub(channel);
    cluster = v1::Cluster::NewStub(channel);
  }

  static v1::CreateJobRequest Request() {
    v1::CreateJobRequest request;
    request.mutable_job()->set_base_model("m");
    request.mutable_job()->set_training_dataset("d");
    request.mutable_job()->mutable_training()->set_max_steps(4);
    (*request.mutable_job()->mutable_labels())["team"] = "x";
    return request;
  }

  std::string Create() {
    Context context;
    v1::Job job;
    const grpc::Status status = jobs->CreateJob(&context, Request(), &job);
    INFO(status.error_message());
    REQUIRE(status.ok());
    return job.name();
  }

  v1::Job Get(const std::string& name) {
    Context context;
    v1::GetJobRequest request;
    request.set_name(name);
    v1::Job job;
    REQUIRE(jobs->GetJob(&context, request, &job).ok());
    return job;
  }

  bool Becomes(const std::string& name, v1::Job::State state) {
    return Eventually([&] { return Get(name).state() == state; });
  }

  size_t Count(const std::string& filter) {
    Context context;
    v1::ListJobsRequest request;
    request.set_filter(filter);
    v1::ListJobsResponse response;
    REQUIRE(jobs->ListJobs(&context, request, &response).ok());
    return static_cast<size_t>(response.jobs_size());
  }

  storage::TempDirectory directory;
  std::unique_ptr<Daemon> daemon;
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Models::Stub> models;
  std::unique_ptr<v1::Datasets::Stub> datasets;
  std::unique_ptr<v1::Cluster::Stub> cluster;
};

}  // namespace lorad::server
