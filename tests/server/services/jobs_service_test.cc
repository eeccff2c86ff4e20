#include <catch2/catch.hpp>
#include <filesystem>

#include "lorad/v1/jobs.grpc.pb.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/adapters/peft.h"
#include "storage/tensors/safetensors.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {
namespace {

constexpr char kConfig[] = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
  "num_key_value_heads": 1, "vocab_size": 32, "max_position_embeddings": 64, "rms_norm_eps": 1e-5,
  "hidden_act": "silu", "tie_word_embeddings": true, "rope_theta": 10000.0,
  "torch_dtype": "float32"})";

// Knows the model "m" and the dataset "d".
absl::StatusOr<ReplyValue> SmallWorld(const ApiFixture& api, const Request& request) {
  if (const auto* get = std::get_if<v1::GetModelRequest>(&request); get && get->name() == "m") {
    v1::Model model;
    model.set_name("m");
    model.set_path(api.directory / "m");
    model.set_architecture("LlamaForCausalLM");
    model.set_max_position_embeddings(64);
    for (const char* target : {"q_proj", "k_proj", "v_proj"}) model.add_target_modules(target);
    return ReplyValue(model);
  }
  if (const auto* get = std::get_if<v1::GetDatasetRequest>(&request); get && get->name() == "d") {
    return ReplyValue(v1::Dataset());
  }
  if (const auto* create = std::get_if<CreateJob>(&request)) {
    v1::Job job = create->job;
    job.set_name("job-1");
    return ReplyValue(job);
  }
  if (std::holds_alternative<EstimateJob>(request)) {
    v1::JobEstimate estimate;
    estimate.set_total_steps(7);
    return ReplyValue(estimate);
  }
  return NotFound("thing", "x");
}

struct JobsFixture : ApiFixture {
  explicit JobsFixture(ApiServerOptions options = {})
      : ApiFixture(storage::RealFiles(), std::move(options)), stub(v1::Jobs::NewStub(channel)) {
    driver.answer = [this](const Request& request) { return SmallWorld(*this, request); };
  }
  std::unique_ptr<v1::Jobs::Stub> stub;
};

v1::CreateJobRequest SmallCreate() {
  v1::CreateJobRequest request;
  request.mutable_job()->set_base_model("m");
  request.mutable_job()->set_training_dataset("d");
  return request;
}

TEST_CASE_METHOD(JobsFixture, "a job is completed before the core sees it") {
  v1::CreateJobRequest request = SmallCreate();
  request.set_request_id("r1");
  Context context;
  v1::Job job;
  REQUIRE(stub->CreateJob(&context, request, &job).ok());
  CHECK(job.name() == "job-1");
  CHECK(job.adapter().rank() == 8);
  CHECK(job.training().max_length() == 64);
  const std::vector<CreateJob> creates = driver.Requests<CreateJob>();
  REQUIRE(creates.size() == 1);
  CHECK(creates[0].request_id.id == "r1");
  CHECK(!creates[0].validate_only);
  // The content is what the client said, not what was made of it.
  CHECK(creates[0].request_id.content == request.job().SerializeAsString());
}

TEST_CASE_METHOD(JobsFixture, "the content of a request does not depend on the order of labels") {
  std::vector<std::string> contents;
  for (const bool forward : {true, false}) {
    v1::CreateJobRequest request = SmallCreate();
    for (int i = 0; i < 20; ++i) {
      const std::string key = "k" + std::to_string(forward ? i : 19 - i);
      (*request.mutable_job()->mutable_labels())[key] = "v";
    }
    Context context;
    v1::Job job;
    REQUIRE(stub->CreateJob(&context, request, &job).ok());
    contents.push_back(driver.Requests<CreateJob>().back().request_id.content);
  }
  CHECK(contents[0] == contents[1]);
}

TEST_CASE_METHOD(JobsFixture, "every violation of a job is answered, and nothing is created") {
  v1::CreateJobRequest request = SmallCreate();
  request.mutable_job()->set_base_model("nobody");
  request.mutable_job()->set_validation_dataset("v");
  request.mutable_job()->mutable_adapter()->set_rank(0);
  Context context;
  v1::Job job;
  const grpc::Status status = stub->CreateJob(&context, request, &job);
  CHECK(status.error_code() == grpc::INVALID_ARGUMENT);
  CHECK(Summary(status) ==
        "INVALID_FIELDS base_model: there is no model 'nobody': register it first (lora model add);"
        " validation_dataset: there is no dataset 'v': create it first (lora dataset add);"
        " adapter.rank: must be between 1 and 512, got 0;");
  CHECK(driver.Requests<CreateJob>().empty());

  Context second;
  request = SmallCreate();
  request.set_request_id(std::string(65, 'x'));
  CHECK(Summary(stub->CreateJob(&second, request, &job)) ==
        "INVALID_FIELDS request_id: must have at most 64 characters, got 65;");
}

TEST_CASE_METHOD(JobsFixture, "estimates check the job as creation does") {
  v1::EstimateJobRequest request;
  *request.mutable_job() = SmallCreate().job();
  v1::JobEstimate estimate;
  Context context;
  REQUIRE(stub->EstimateJob(&context, request, &estimate).ok());
  CHECK(estimate.total_steps() == 7);
  CHECK(driver.Requests<EstimateJob>()[0].job.training().batch_size() == 8);
  request.mutable_job()->mutable_training()->set_epochs(-1);
  Context second;
  CHECK(Summary(stub->EstimateJob(&second, request, &estimate)) ==
        "INVALID_FIELDS training.epochs: must be between 1 and 10000, got -1;");
}

// An adapter for the model of kConfig: rank 2, q_proj alone, `features` wide.
void WriteAdapter(const storage::TempDirectory& directory, int64_t features) {
  storage::PeftConfig config;
  config.rank = 2;
  config.alpha = 4;
  config.target_modules = {"q_proj"};
  directory.Write("a/adapter_config.json", storage::WritePeftConfig(config));
  std::vector<storage::TensorEntry> entries = {
      {storage::PeftKey("model.layers.0.self_attn.q_proj", 'A'),
       storage::TensorType::kF32,
       {2, features}},
      {storage::PeftKey("model.layers.0.self_attn.q_proj", 'B'),
       storage::TensorType::kF32,
       {8, 2}}};
  const storage::SafetensorsLayout layout(entries, {});
  std::string bytes = layout.prefix();
  bytes.resize(layout.file_bytes());
  directory.Write("a/adapter_model.safetensors", bytes);
}

TEST_CASE_METHOD(JobsFixture, "init_from lends its settings, or does not fit") {
  directory.Write("m/config.json", kConfig);
  driver.adapter_path = [this](const std::string& name) -> absl::StatusOr<std::string> {
    if (name == "a") return directory / "a";
    return NotFound("adapter", name);
  };
  v1::CreateJobRequest request = SmallCreate();
  request.mutable_job()->mutable_adapter()->set_init_from("a");
  v1::Job job;

  WriteAdapter(directory, 8);
  Context context;
  const grpc::Status status = stub->CreateJob(&context, request, &job);
  INFO(status.error_message() << Summary(status));
  REQUIRE(status.ok());
  CHECK(job.adapter().rank() == 2);
  CHECK(job.adapter().alpha() == 4);
  CHECK(job.adapter().target_modules(0) == "q_proj");

  WriteAdapter(directory, 16);
  Context second;
  const std::string summary = Summary(stub->CreateJob(&second, request, &job));
  CHECK_THAT(summary, Catch::Contains("adapter.init_from: does not fit the model 'm': "));

  request.mutable_job()->mutable_adapter()->set_init_from("job-9/50");
  Context third;
  CHECK(Summary(stub->CreateJob(&third, request, &job)) ==
        "INVALID_FIELDS adapter.init_from: there is no adapter or checkpoint 'job-9/50': name an "
        "imported adapter, or a checkpoint as JOB/STEP;");
}

TEST_CASE_METHOD(JobsFixture, "lists: pages, filters, and answers that are too large") {
  driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
    const auto& list = std::get<v1::ListJobsRequest>(request);
    v1::ListJobsResponse response;
    for (int i = 0; i < list.page_size(); ++i) {
      response.add_jobs()->set_display_name(std::string(100'000, 'x'));
    }
    return ReplyValue(response);
  };
  v1::ListJobsRequest request;
  v1::ListJobsResponse response;
  Context context;
  REQUIRE(stub->ListJobs(&context, request, &response).ok());
  const std::vector<v1::ListJobsRequest> asked = driver.Requests<v1::ListJobsRequest>();
  CHECK(asked.front().page_size() == 100);  // the default
  CHECK(asked.back().page_size() == 25);    // what fits into a message
  CHECK(response.jobs_size() == 25);

  request.set_page_size(5000);
  Context second;
  CHECK(Summary(stub->ListJobs(&second, request, &response)) ==
        "INVALID_FIELDS page_size: must be between 1 and 1000, or 0 for 100, got 5000;");
  request.set_page_size(1);
  request.set_filter("state = RUNING");
  Context third;
  CHECK_THAT(Summary(stub->ListJobs(&third, request, &response)),
             Catch::Contains("filter: column 9: a state must stand here"));
}

TEST_CASE_METHOD(JobsFixture, "events and metrics have page sizes of their own") {
  v1::ListEventsResponse events;
  v1::ListEventsRequest list;
  list.set_job("j");
  Context context;
  REQUIRE(stub->ListEvents(&context, list, &events).ok());
  CHECK(events.events(0).job() == "j/100");
  v1::GetMetricsRequest get;
  v1::GetMetricsResponse metrics;
  Context second;
  REQUIRE(stub->GetMetrics(&second, get, &metrics).ok());
  CHECK(metrics.steps(0).step() == 1000);
  get.set_page_size(10'001);
  Context third;
  CHECK(Summary(stub->GetMetrics(&third, get, &metrics)) ==
        "INVALID_FIELDS page_size: must be between 1 and 10000, or 0 for 1000, got 10001;");
}

TEST_CASE_METHOD(JobsFixture, "errors of the core travel whole") {
  driver.answer = [](const Request&) {
    return PreconditionFailed("JOB_LIVE", "job job-1", "job-1 is RUNNING: cancel it first");
  };
  v1::DeleteJobRequest request;
  google::protobuf::Empty empty;
  Context context;
  const grpc::Status status = stub->DeleteJob(&context, request, &empty);
  CHECK(status.error_code() == grpc::FAILED_PRECONDITION);
  CHECK(status.error_message() == "job-1 is RUNNING: cancel it first");
  CHECK(ErrorInfoOf(status).reason() == "JOB_LIVE");
}

TEST_CASE_METHOD(JobsFixture, "a message over the limit is refused") {
  v1::CreateJobRequest request = SmallCreate();
  request.mutable_job()->set_display_name(std::string(kMessageBytesMax + 1, 'x'));
  Context context;
  v1::Job job;
  CHECK(stub->CreateJob(&context, request, &job).error_code() == grpc::RESOURCE_EXHAUSTED);
}

}  // namespace
}  // namespace lorad::server
