#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/adapters/peft.h"
#include "storage/tensors/safetensors.h"
#include "tests/server/services/api_fixture.h"
#include "tests/sim/disk/memory_store.h"

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

v1::Job Named(const std::string& name, int64_t revision) {
  v1::Job job;
  job.set_name(name);
  job.set_revision(revision);
  return job;
}

struct WatchFixture : JobsFixture {
  explicit WatchFixture(ApiServerOptions options = {}) : JobsFixture(std::move(options)) {
    driver.revisions().Start({kStore, 0, 10, &store});
    driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
      JobSnapshot snapshot;
      const auto& asked = std::get<SnapshotJobs>(request);
      for (const auto& [name, revision] :
           std::vector<std::pair<std::string, int64_t>>{{"b", 3}, {"c", 5}, {"a", 9}}) {
        const auto& names = asked.names;
        const bool among =
            names.empty() || std::find(names.begin(), names.end(), name) != names.end();
        if (among && revision > asked.after) snapshot.jobs.push_back(Named(name, revision));
      }
      return ReplyValue(snapshot);
    };
  }

  // As the driver does it: a change is in the store first.
  void Tell(const std::string& name, int64_t revision, bool progress = false, size_t bytes = 0) {
    v1::WatchJobsResponse response;
    *response.mutable_job() = Named(name, revision);
    response.mutable_job()->set_display_name(std::string(bytes, 'x'));
    response.set_revision(revision);
    std::string message = response.SerializeAsString();
    if (!progress) {
      REQUIRE(store.Apply({storage::PutEntry(kRevisionSeries, "", revision, message)}).ok());
    }
    driver.revisions().Append({revision, name, std::move(message), progress});
  }

  // "NAME@REVISION" of the next response, "@REVISION" of a bookmark; "end" when there is none.
  static std::string Next(grpc::ClientReader<v1::WatchJobsResponse>& reader) {
    v1::WatchJobsResponse response;
    if (!reader.Read(&response)) return "end";
    CHECK(response.store() == kStore);
    return response.job().name() + "@" + std::to_string(response.revision());
  }
  // A watch that resumes.
  std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>> Resume(
      Context& context, int64_t revision, const std::string& of_store = "",
      const std::vector<std::string>& names = {}, bool bookmarks = false) {
    v1::WatchJobsRequest request;
    for (const std::string& name : names) request.add_names(name);
    request.set_resume_from_revision(revision);
    request.set_resume_from_store(of_store);
    request.set_bookmarks(bookmarks);
    return stub->WatchJobs(&context, request);
  }

  sim::MemoryStore store;
};

TEST_CASE_METHOD(WatchFixture, "a watch begins with the present state and goes on with changes") {
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  CHECK(Next(*reader) == "b@3");
  CHECK(Next(*reader) == "c@5");
  CHECK(Next(*reader) == "a@9");
  Tell("c", 11);
  Tell("a", 12);
  CHECK(Next(*reader) == "c@11");
  CHECK(Next(*reader) == "a@12");
  server->BeginStop();
  CHECK(Next(*reader) == "end");
  CHECK(ErrorInfoOf(reader->Finish()).reason() == "SHUTTING_DOWN");
}

TEST_CASE_METHOD(WatchFixture, "a watch of names, and one that resumes") {
  v1::WatchJobsRequest request;
  request.add_names("c");
  Context context;
  auto named = stub->WatchJobs(&context, request);
  CHECK(Next(*named) == "c@5");
  Tell("b", 11);
  Tell("c", 12);
  CHECK(Next(*named) == "c@12");
  context.TryCancel();

  request.clear_names();
  request.set_resume_from_revision(11);
  Context second;
  auto resumed = stub->WatchJobs(&second, request);
  CHECK(Next(*resumed) == "c@12");
  second.TryCancel();

  request.set_resume_from_revision(99);
  Context third;
  auto gone = stub->WatchJobs(&third, request);
  CHECK(Next(*gone) == "end");
  CHECK(gone->Finish().error_code() == grpc::OUT_OF_RANGE);

  request.set_resume_from_revision(-1);
  Context fourth;
  CHECK(Summary(stub->WatchJobs(&fourth, request)->Finish()) ==
        "INVALID_FIELDS resume_from_revision: must not be negative;");
}

TEST_CASE_METHOD(WatchFixture, "a resumed watch makes no snapshot") {
  Tell("a", 11);
  Tell("a", 12);
  v1::WatchJobsRequest request;
  request.set_resume_from_revision(11);
  Context context;
  auto reader = stub->WatchJobs(&context, request);
  CHECK(Next(*reader) == "a@12");
  CHECK(driver.Requests<SnapshotJobs>().empty());
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a snapshot comes in pages, and only as fast as it is read") {
  constexpr int64_t kJobs = 1000;
  constexpr size_t kPages = kJobs / 64 + 1;
  driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
    const auto& asked = std::get<SnapshotJobs>(request);
    JobSnapshot snapshot;
    for (int64_t revision = asked.after + 1; revision <= kJobs; ++revision) {
      if (static_cast<int64_t>(snapshot.jobs.size()) == asked.limit) break;
      v1::Job job = Named("j" + std::to_string(revision), revision);
      job.set_display_name(std::string(16 << 10, 'x'));
      snapshot.jobs.push_back(job);
    }
    return ReplyValue(snapshot);
  };
  driver.revisions().Start({kStore, 0, kJobs, &store});
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  CHECK(Next(*reader) == "j1@1");
  std::this_thread::sleep_for(std::chrono::milliseconds(200));
  CHECK(driver.Requests<SnapshotJobs>().size() < kPages);
  for (int64_t revision = 2; revision <= kJobs; ++revision) {
    REQUIRE(Next(*reader) == "j" + std::to_string(revision) + "@" + std::to_string(revision));
  }
  Tell("j1", kJobs + 1);
  CHECK(Next(*reader) == "j1@1001");
  CHECK(driver.Requests<SnapshotJobs>().size() == kPages);
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a watcher that reads slowly misses no change, nor its jobs' news") {
  constexpr int64_t kNewest = 2000;  // twenty times what is in memory
  Context context;
  auto reader = stub->WatchJobs(&context, {});
  reader->WaitForInitialMetadata();
  for (int64_t revision = 11; revision <= kNewest; ++revision) {
    Tell(revision % 3 == 0 ? "b" : "a", revision, revision % 3 == 0, 8 << 10);
  }
  int64_t last = 0;
  std::set<int64_t> told;
  v1::WatchJobsResponse message;
  while (last < kNewest && reader->Read(&message)) {
    REQUIRE(message.revision() > last);
    told.insert(last = message.revision());
  }
  for (int64_t revision = 11; revision <= kNewest; ++revision) {
    if (revision % 3 != 0) REQUIRE(told.contains(revision));
  }
  CHECK(told.contains(kNewest - kNewest % 3));  // the newest progress of b
  context.TryCancel();
}

TEST_CASE_METHOD(WatchFixture, "a revision behind which changes are gone, or of another store") {
  for (int64_t revision = 11; revision <= 300; ++revision) Tell("a", revision);
  {
    Context context;
    auto kept = Resume(context, 20, kStore);
    for (int64_t revision = 21; revision <= 300; ++revision) {
      REQUIRE(Next(*kept) == "a@" + std::to_string(revision));
    }
    CHECK(driver.Requests<SnapshotJobs>().empty());
    context.TryCancel();
  }
  REQUIRE(store
              .Apply({storage::TrimSeries(kRevisionSeries, "", 50),
                      storage::PutRecord(kMetaKind, kTrimmedKey, "50")})
              .ok());
  {
    Context context;
    auto gone = Resume(context, 49, kStore);
    CHECK(Next(*gone) == "end");
    const grpc::Status status = gone->Finish();
    CHECK(status.error_code() == grpc::OUT_OF_RANGE);
    CHECK(ErrorInfoOf(status).reason() == "REVISION_GONE");
    CHECK(ErrorInfoOf(status).metadata().at("oldest_revision") == "51");
  }
  {
    Context context;
    auto kept = Resume(context, 50, kStore);
    CHECK(Next(*kept) == "a@51");
    context.TryCancel();
  }
  Context context;
  const grpc::Status status = Resume(context, 299, "fedcba9876543210")->Finish();
  CHECK(status.error_code() == grpc::OUT_OF_RANGE);
  CHECK(ErrorInfoOf(status).reason() == "OTHER_STORE");
  CHECK(status.error_message().find("watch again without resume_from_revision") !=
        std::string::npos);
}

TEST_CASE_METHOD(WatchFixture, "one who comes back is told of a job's newest progress, once") {
  Tell("a", 11, true);
  Tell("b", 12, true);
  Tell("a", 13, true);
  Tell("b", 14);
  Context context;
  auto reader = Resume(context, 10);
  CHECK(Next(*reader) == "a@13");
  CHECK(Next(*reader) == "b@14");
  Tell("a", 15, true);
  CHECK(Next(*reader) == "a@15");
  context.TryCancel();
}

struct BookmarkFixture : WatchFixture {
  static ApiServerOptions Soon() {
    ApiServerOptions options;
    options.bookmark_wait = absl::Milliseconds(300);
    return options;
  }
  BookmarkFixture() : WatchFixture(Soon()) {}
};

TEST_CASE_METHOD(BookmarkFixture, "bookmarks: behind the present state, and in silence") {
  v1::WatchJobsRequest request;
  request.add_names("c");
  request.set_bookmarks(true);
  Context context;
  auto reader = stub->WatchJobs(&context, request);
  CHECK(Next(*reader) == "c@5");
  CHECK(Next(*reader) == "@10");
  // Of others: nothing is told, but for the newest revision after a while.
  const absl::Time began = absl::Now();
  Tell("a", 11);
  Tell("b", 12, true);
  CHECK(Next(*reader) == "@12");
  CHECK(absl::Now() - began > absl::Milliseconds(250));
  Tell("c", 13);
  CHECK(Next(*reader) == "c@13");
  Tell("a", 14);
  CHECK(Next(*reader) == "@14");
  context.TryCancel();

  Context again;
  auto resumed = Resume(again, 14, kStore, {"c"}, true);
  resumed->WaitForInitialMetadata();
  Tell("c", 15);
  CHECK(Next(*resumed) == "c@15");
  again.TryCancel();
}

TEST_CASE_METHOD(BookmarkFixture, "who asks for no bookmarks gets none") {
  Context context;
  auto reader = Resume(context, 10, kStore, {"c"});
  reader->WaitForInitialMetadata();
  Tell("a", 11);
  std::this_thread::sleep_for(std::chrono::milliseconds(700));
  Tell("c", 12);
  CHECK(Next(*reader) == "c@12");
  context.TryCancel();
}

// Watches on as many connections as they take.
struct ManyWatches {
  ManyWatches(WatchFixture& api, int count) {
    for (int i = 0; i < count; ++i) {
      if (i % 250 == 0) stubs.push_back(v1::Jobs::NewStub(api.NewChannel()));
      contexts.push_back(std::make_unique<Context>());
      readers.push_back(stubs.back()->WatchJobs(contexts.back().get(), {}));
    }
    for (const auto& reader : readers) REQUIRE(WatchFixture::Next(*reader) == "b@3");
  }
  ~ManyWatches() {
    for (const auto& context : contexts) context->TryCancel();
  }
  std::vector<std::unique_ptr<v1::Jobs::Stub>> stubs;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> readers;
};

size_t Threads() {
  return static_cast<size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                                           std::filesystem::directory_iterator()));
}

TEST_CASE_METHOD(WatchFixture, "a thousand watches take no thread each") {
  const ManyWatches first(*this, 1);
  const size_t before = Threads();
  const ManyWatches watches(*this, 1000);
  // The server's, the clients' and the test's own.
  CHECK(Threads() <= 48);
  CHECK(Threads() <= before + 16);
  Tell("a", 11);
  for (const auto& reader : watches.readers) {
    REQUIRE(Next(*reader) == "c@5");
    REQUIRE(Next(*reader) == "a@9");
    REQUIRE(Next(*reader) == "a@11");
  }
}

TEST_CASE_METHOD(WatchFixture, "watches are limited, and unary calls go on beside them") {
  {
    const ManyWatches watches(*this, kWatchesMax);
    Context context;
    const grpc::Status refused = stub->WatchJobs(&context, {})->Finish();
    CHECK(refused.error_code() == grpc::RESOURCE_EXHAUSTED);
    CHECK(ErrorInfoOf(refused).reason() == "TOO_MANY_CALLS");
    Context second;
    v1::GetMetricsResponse metrics;
    CHECK(stub->GetMetrics(&second, {}, &metrics).ok());
  }
  CHECK(Eventually([&] {
    Context again;
    auto reader = stub->WatchJobs(&again, {});
    const bool heard = Next(*reader) == "b@3";
    again.TryCancel();
    return heard;
  }));
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
