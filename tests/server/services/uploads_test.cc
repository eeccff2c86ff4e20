#include <catch2/catch.hpp>
#include <filesystem>
#include <set>

#include "lorad/v1/adapters.grpc.pb.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/adapters/peft.h"
#include "storage/files/sha256.h"
#include "storage/tensors/safetensors.h"
#include "tests/server/services/api_fixture.h"
#include "tests/server/services/full_disk.h"

namespace lorad::server {
namespace {

constexpr char kRows[] = "{\"text\": \"one\"}\n{\"text\": \"two\"}\n";

// Answers creates with what they create; everything else is not there.
absl::StatusOr<ReplyValue> EmptyWorld(const Request& request) {
  if (const auto* create = std::get_if<CreateDataset>(&request)) return ReplyValue(create->dataset);
  if (const auto* import = std::get_if<ImportAdapter>(&request)) return ReplyValue(import->adapter);
  if (const auto* add = std::get_if<RegisterModel>(&request)) return ReplyValue(add->model);
  return NotFound("thing", "x");
}

struct UploadFixture : ApiFixture {
  explicit UploadFixture(storage::Files& files = storage::RealFiles())
      : ApiFixture(files),
        datasets(v1::Datasets::NewStub(channel)),
        adapters(v1::Adapters::NewStub(channel)),
        models(v1::Models::NewStub(channel)),
        checkpoints(v1::Checkpoints::NewStub(channel)) {
    driver.answer = EmptyWorld;
  }

  // Sends a dataset in the given chunks.
  grpc::Status Create(const v1::CreateDatasetRequest::Config& config,
                      const std::vector<std::string>& chunks, v1::Dataset* dataset) {
    Context context;
    auto writer = datasets->CreateDataset(&context, dataset);
    v1::CreateDatasetRequest message;
    *message.mutable_config() = config;
    bool open = writer->Write(message);
    for (const std::string& chunk : chunks) {
      message.set_chunk(chunk);
      open = open && writer->Write(message);
    }
    writer->WritesDone();
    return writer->Finish();
  }

  std::unique_ptr<v1::Datasets::Stub> datasets;
  std::unique_ptr<v1::Adapters::Stub> adapters;
  std::unique_ptr<v1::Models::Stub> models;
  std::unique_ptr<v1::Checkpoints::Stub> checkpoints;
};

v1::CreateDatasetRequest::Config Named(const std::string& name) {
  v1::CreateDatasetRequest::Config config;
  config.set_name(name);
  return config;
}

TEST_CASE_METHOD(UploadFixture, "a dataset comes in chunks and is handed over whole") {
  v1::CreateDatasetRequest::Config config = Named("d");
  config.set_request_id("r");
  config.set_size_bytes(sizeof(kRows) - 1);
  v1::Dataset dataset;
  REQUIRE(Create(config, {"{\"text\":", " \"one\"}\n{\"te", "xt\": \"two\"}\n"}, &dataset).ok());
  CHECK(dataset.name() == "d");
  CHECK(dataset.rows() == 2);
  CHECK(dataset.format() == v1::Dataset::TEXT);
  CHECK(dataset.size_bytes() == sizeof(kRows) - 1);
  CHECK(dataset.sha256() == storage::Sha256::Of(kRows));
  const CreateDataset create = driver.Requests<CreateDataset>().at(0);
  CHECK(create.request_id.id == "r");
  CHECK(storage::RealFiles().ReadAll(create.upload, 1000).value() == kRows);
}

TEST_CASE_METHOD(UploadFixture, "datasets that are refused leave nothing behind") {
  struct Case {
    v1::CreateDatasetRequest::Config config;
    std::vector<std::string> chunks;
    grpc::StatusCode code;
    std::string summary;
  };
  v1::CreateDatasetRequest::Config longer = Named("d");
  longer.set_size_bytes(1000);
  v1::CreateDatasetRequest::Config wrong = Named("D D");
  wrong.set_request_id("\n");
  wrong.set_size_bytes(-1);
  const Case cases[] = {
      {Named("d"),
       {"{\"text\": \"one\"}\n{\"txt\": 1}\n"},
       grpc::INVALID_ARGUMENT,
       "DATASET_INVALID"},
      {Named("d"), {}, grpc::INVALID_ARGUMENT, "DATASET_INVALID"},
      {Named("d"), {"{\"text\": \"\xff\"}"}, grpc::INVALID_ARGUMENT, "DATASET_INVALID"},
      {longer, {kRows}, grpc::INVALID_ARGUMENT, "UPLOAD_INCOMPLETE"},
      {Named("d"),
       {std::string(kChunkBytesMax + 1, ' ')},
       grpc::INVALID_ARGUMENT,
       "CHUNK_TOO_LARGE"},
      {wrong,
       {kRows},
       grpc::INVALID_ARGUMENT,
       "INVALID_FIELDS config.name: must be lower-case letters, digits and '-', beginning and "
       "ending with a letter or a digit, got 'D D'; config.request_id: must be printable ASCII "
       "characters; config.size_bytes: must be between 0 and 4294967296, got -1;"},
  };
  for (const Case& c : cases) {
    v1::Dataset dataset;
    const grpc::Status status = Create(c.config, c.chunks, &dataset);
    INFO(status.error_message());
    CHECK(status.error_code() == c.code);
    CHECK(Summary(status) == c.summary);
    CHECK(Eventually([&] { return Uploads().empty(); }));
  }
  CHECK(driver.Requests<CreateDataset>().empty());
}

TEST_CASE_METHOD(UploadFixture, "a name that is taken is refused before the upload") {
  driver.dataset_path = [this](const std::string& name) -> absl::StatusOr<std::string> {
    if (name == "d") return directory / "d";
    return NotFound("dataset", name);
  };
  v1::Dataset dataset;
  CHECK(Summary(Create(Named("d"), {}, &dataset)) == "DATASET_EXISTS");
  CHECK(Create(Named("e"), {kRows}, &dataset).ok());
}

TEST_CASE_METHOD(UploadFixture, "a client that leaves in mid-stream leaves nothing behind") {
  Context context;
  v1::Dataset dataset;
  auto writer = datasets->CreateDataset(&context, &dataset);
  v1::CreateDatasetRequest message;
  *message.mutable_config() = Named("d");
  REQUIRE(writer->Write(message));
  message.set_chunk(kRows);
  REQUIRE(writer->Write(message));
  REQUIRE(Eventually([&] { return !Uploads().empty(); }));
  context.TryCancel();
  CHECK(writer->Finish().error_code() == grpc::CANCELLED);
  CHECK(Eventually([&] { return Uploads().empty(); }));
  CHECK(driver.Requests<CreateDataset>().empty());
}

TEST_CASE_METHOD(UploadFixture, "a stored dataset is validated as it was uploaded, or not at all") {
  const std::string rows = "{\"input_ids\":[1,2],\"labels\":[1,2]}\n";
  driver.answer = [&](const Request& request) -> absl::StatusOr<ReplyValue> {
    if (std::holds_alternative<v1::GetDatasetRequest>(request)) {
      v1::Dataset dataset;
      dataset.set_sha256(storage::Sha256::Of(rows + rows));
      return ReplyValue(dataset);
    }
    v1::Model model;
    model.set_path("tests/golden/llama_gqa_untied/model");
    model.set_max_position_embeddings(64);
    return ReplyValue(model);
  };
  driver.dataset_path = [this](const std::string&) { return directory / "rows.jsonl"; };
  const auto validate = [&](int64_t* counted) {
    Context context;
    auto stream = datasets->ValidateDataset(&context);
    v1::ValidateDatasetRequest request;
    request.mutable_config()->set_model("m");
    request.mutable_config()->set_dataset("d");
    stream->Write(request);
    v1::ValidateDatasetResponse response;
    while (stream->Read(&response)) *counted = response.report().rows();
    return Summary(stream->Finish());
  };
  int64_t counted = 0;
  directory.Write("rows.jsonl", rows + rows);
  CHECK(validate(&counted) == "");
  CHECK(counted == 2);
  counted = 0;
  directory.Write("rows.jsonl", rows);
  CHECK(validate(&counted) == "DATASET_CHANGED");
  CHECK(counted == 0);
}

TEST_CASE("a full disk in mid-upload is said, and leaves nothing behind") {
  FullDisk disk(3 << 20);
  UploadFixture api(disk);
  v1::Dataset dataset;
  const std::vector<std::string> chunks(8, std::string(kChunkBytesMax, ' '));
  const grpc::Status status = api.Create(Named("d"), chunks, &dataset);
  CHECK(status.error_code() == grpc::RESOURCE_EXHAUSTED);
  CHECK(Summary(status) == "DISK_FULL");
  CHECK_THAT(status.error_message(),
             Catch::Contains("the dataset could not be stored, and nothing was kept of it: "));
  CHECK(Eventually([&] { return api.Uploads().empty(); }));
}

TEST_CASE_METHOD(UploadFixture, "uploads at once are limited") {
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::CreateDatasetRequest>>> writers;
  std::vector<v1::Dataset> answers(kUploadsMax);
  v1::CreateDatasetRequest message;
  for (v1::Dataset& answer : answers) {
    contexts.push_back(std::make_unique<Context>());
    writers.push_back(datasets->CreateDataset(contexts.back().get(), &answer));
    *message.mutable_config() = Named("d");
    REQUIRE(writers.back()->Write(message));
    message.set_chunk(kRows);
    REQUIRE(writers.back()->Write(message));
  }
  REQUIRE(Eventually([&] { return Uploads().size() == kUploadsMax; }));
  v1::Dataset dataset;
  CHECK(Summary(Create(Named("d"), {kRows}, &dataset)) == "TOO_MANY_CALLS");
  for (const auto& context : contexts) context->TryCancel();
  CHECK(Eventually([&] { return Uploads().empty(); }));
}

// adapter_config.json and adapter_model.safetensors of one small matrix pair; `value` fills them.
std::vector<std::pair<std::string, std::string>> AdapterFiles(float value) {
  storage::PeftConfig config;
  config.rank = 1;
  config.alpha = 2;
  config.target_modules = {"q_proj"};
  const std::string path = "model.layers.0.self_attn.q_proj";
  const storage::SafetensorsLayout layout(
      {{storage::PeftKey(path, 'A'), storage::TensorType::kF32, {1, 4}},
       {storage::PeftKey(path, 'B'), storage::TensorType::kF32, {4, 1}}},
      {});
  std::string bytes = layout.prefix();
  for (int i = 0; i < 8; ++i) bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  return {{storage::kAdapterConfigFile, storage::WritePeftConfig(config)},
          {storage::kAdapterModelFile, bytes}};
}

grpc::Status Import(UploadFixture& api, const std::string& name,
                    const std::vector<std::pair<std::string, std::string>>& files,
                    v1::Adapter* adapter) {
  Context context;
  auto writer = api.adapters->ImportAdapter(&context, adapter);
  v1::ImportAdapterRequest message;
  message.mutable_config()->set_name(name);
  bool open = writer->Write(message);
  for (const auto& [file, bytes] : files) {
    message.set_file(file);
    open = open && writer->Write(message);
    message.set_chunk(bytes);
    open = open && writer->Write(message);
  }
  writer->WritesDone();
  return writer->Finish();
}

TEST_CASE_METHOD(UploadFixture, "an adapter comes as its two files") {
  v1::Adapter adapter;
  const auto files = AdapterFiles(0.5f);
  const grpc::Status status = Import(*this, "a", files, &adapter);
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK(adapter.name() == "a");
  CHECK(adapter.rank() == 1);
  CHECK(adapter.alpha() == 2);
  REQUIRE(adapter.target_modules_size() == 1);
  CHECK(adapter.target_modules(0) == "q_proj");
  CHECK(adapter.size_bytes() == static_cast<int64_t>(files[1].second.size()));
  CHECK(adapter.sha256() == storage::Sha256::Of(files[1].second));
  const ImportAdapter import = driver.Requests<ImportAdapter>().at(0);
  CHECK(storage::PeftAdapter::Open(import.upload).ok());
}

TEST_CASE_METHOD(UploadFixture, "adapters that are refused leave nothing behind") {
  const auto good = AdapterFiles(0.5f);
  struct Case {
    std::string name;
    std::vector<std::pair<std::string, std::string>> files;
    std::string summary;
  };
  const Case cases[] = {
      {"A", good,
       "INVALID_FIELDS config.name: must be lower-case letters, digits and '-', beginning and "
       "ending with a letter or a digit, got 'A';"},
      {"a", {good[0]}, "ADAPTER_INVALID"},
      {"a", {good[1]}, "ADAPTER_INVALID"},
      {"a",
       {good[0], good[0]},
       "INVALID_FIELDS file: must be adapter_config.json or adapter_model.safetensors, each once, "
       "got 'adapter_config.json';"},
      {"a",
       {good[0], {"../x", ""}},
       "INVALID_FIELDS file: must be adapter_config.json or adapter_model.safetensors, each once, "
       "got '../x';"},
      {"a", {{good[0].first, "{"}, good[1]}, "ADAPTER_INVALID"},
      {"a", {good[0], {good[1].first, "short"}}, "SAFETENSORS_INVALID"},
      {"a", AdapterFiles(std::numeric_limits<float>::infinity()), "ADAPTER_INVALID"},
  };
  for (const Case& c : cases) {
    v1::Adapter adapter;
    const grpc::Status status = Import(*this, c.name, c.files, &adapter);
    INFO(status.error_message());
    CHECK(status.error_code() == grpc::INVALID_ARGUMENT);
    CHECK(Summary(status) == c.summary);
    CHECK(Eventually([&] { return Uploads().empty(); }));
  }
}

grpc::Status Register(UploadFixture& api, const std::string& name, const std::string& path,
                      const std::string& chat_template = "") {
  v1::RegisterModelRequest request;
  request.set_chat_template(chat_template);
  request.set_name(name);
  request.set_path(path);
  v1::Model model;
  Context context;
  return api.models->RegisterModel(&context, request, &model);
}

TEST_CASE_METHOD(UploadFixture, "models lie beneath a root, links followed") {
  namespace fs = std::filesystem;
  const std::string inside = directory / "inside";
  fs::create_directories(inside);
  fs::create_directory_symlink("/usr", directory / "way-out");
  fs::create_directory_symlink("/no/such/place", directory / "way-nowhere");
  fs::create_directories(directory / "linked");
  fs::create_symlink("/etc/passwd", directory / "linked/config.json");
  const std::pair<std::string, std::string> cases[] = {
      {"relative", "INVALID_FIELDS path: must be an absolute path on the server's machine;"},
      {"", "INVALID_FIELDS path: must be given;"},
      {inside, "MODEL_NOT_FOUND"},  // no config.json
  };
  for (const auto& [path, summary] : cases) {
    INFO(path);
    const grpc::Status status = Register(*this, "m", path);
    INFO(status.error_message());
    CHECK(Summary(status) == summary);
  }
  // What leads out and what is not there are told in the same words.
  std::set<std::string> answers;
  for (const std::string& path :
       {directory / "nowhere", std::string("/usr"), std::string("/no/such/place"),
        directory / "way-out", directory / "way-nowhere", inside + "/../../..",
        directory / "linked", std::string("/etc/passwd"), std::string("/proc/self/cwd")}) {
    const grpc::Status status = Register(*this, "m", path);
    CHECK(Summary(status) == "MODEL_NOT_FOUND");
    std::string message = status.error_message();
    const size_t at = message.find(path);
    REQUIRE(at != std::string::npos);
    answers.insert(message.replace(at, path.size(), "PATH"));
  }
  CHECK(answers.size() == 1);
  CHECK(driver.Requests<RegisterModel>().empty());
}

TEST_CASE_METHOD(UploadFixture, "a chat template that is given must be of use, and not too long") {
  std::filesystem::copy("tests/golden/llama_gqa_untied/model", directory / "model");
  CHECK(Summary(Register(*this, "m", directory / "model", "{{ x }}")) == "TOKENIZER_INVALID");
  CHECK(Summary(Register(*this, "m", directory / "model", std::string((256 << 10) + 1, 'x'))) ==
        "INVALID_FIELDS chat_template: must have at most 262144 bytes, got 262145;");
  CHECK(driver.Requests<RegisterModel>().empty());
}

TEST_CASE_METHOD(UploadFixture, "links within the root are followed, absolute ones too") {
  namespace fs = std::filesystem;
  fs::copy("tests/golden/llama_gqa_untied/model", directory / "blobs");
  fs::create_directories(directory / "snapshot");
  for (const auto& entry : fs::directory_iterator(directory / "blobs")) {
    fs::create_symlink("../blobs/" + entry.path().filename().string(),
                       fs::path(directory / "snapshot") / entry.path().filename());
  }
  fs::create_directory_symlink(directory / "snapshot", directory / "model");
  const grpc::Status status = Register(*this, "m", directory / "model");
  INFO(status.error_message());
  CHECK(status.ok());
  CHECK(driver.Requests<RegisterModel>().at(0).model.path() ==
        fs::canonical(directory / "snapshot").string());
}

TEST_CASE_METHOD(UploadFixture, "a link to a path that is not UTF-8 is refused, not recorded") {
  namespace fs = std::filesystem;
  const std::string place = directory /
                            "mod\xff"
                            "el";
  fs::copy("tests/golden/llama_gqa_untied/model", place);
  fs::create_directory_symlink(place, directory / "model");
  CHECK_THAT(Summary(Register(*this, "m", directory / "model")),
             Catch::Contains("INVALID_FIELDS path: leads to '") &&
                 Catch::Contains("mod?el', which is not valid UTF-8;"));
  CHECK(driver.Requests<RegisterModel>().empty());
}

TEST_CASE_METHOD(UploadFixture, "where there is no room, uploads are refused before they come") {
  driver.SetWritable(LimitExceeded("DISK_FULL", "disk", "1 GiB is left, 2 GiB are kept"));
  Context context;
  v1::Dataset dataset;
  auto writer = datasets->CreateDataset(&context, &dataset);
  v1::CreateDatasetRequest message;
  *message.mutable_config() = Named("d");
  REQUIRE(writer->Write(message));
  const grpc::Status status = writer->Finish();  // the stream is still open
  CHECK(Summary(status) == "DISK_FULL");
  CHECK(status.error_message() == "1 GiB is left, 2 GiB are kept");
  v1::Adapter adapter;
  CHECK(Summary(Import(*this, "a", AdapterFiles(1), &adapter)) == "DISK_FULL");
  CHECK(Uploads().empty());
  driver.SetWritable(absl::OkStatus());
  CHECK(Create(Named("d"), {kRows}, &dataset).ok());
}

TEST_CASE_METHOD(UploadFixture, "a checkpoint's file is downloaded, also from its middle") {
  std::string bytes(2'500'000, 0);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 7);
  directory.Write("checkpoint/f", bytes);
  driver.checkpoint = [&](const v1::GetCheckpointRequest& request,
                          std::string* path) -> absl::StatusOr<v1::Checkpoint> {
    if (request.job() != "j") return NotFound("job", request.job());
    *path = directory / "checkpoint";
    v1::Checkpoint checkpoint;
    checkpoint.set_step(50);
    v1::CheckpointFile& file = *checkpoint.add_files();
    file.set_name("f");
    file.set_size_bytes(static_cast<int64_t>(bytes.size()));
    file.set_sha256("abc");
    return checkpoint;
  };
  const auto download = [&](const std::string& job, const std::string& file, int64_t offset) {
    v1::DownloadCheckpointRequest request;
    request.set_job(job);
    request.set_file(file);
    request.set_offset(offset);
    Context context;
    auto reader = checkpoints->DownloadCheckpoint(&context, request);
    v1::DownloadCheckpointResponse response;
    std::string received;
    bool first = true;
    while (reader->Read(&response)) {
      CHECK(response.has_file() == first);
      CHECK(response.chunk().size() <= kChunkBytesMax);
      first = false;
      received += response.chunk();
    }
    const grpc::Status status = reader->Finish();
    return status.ok() ? received : Summary(status);
  };
  CHECK(download("j", "f", 0) == bytes);
  CHECK(download("j", "f", 2'000'001) == bytes.substr(2'000'001));
  CHECK(download("j", "f", 2'500'000).empty());
  CHECK(download("j", "f", 2'500'001) == "OFFSET_OUT_OF_RANGE");
  CHECK(download("j", "f", -1) == "OFFSET_OUT_OF_RANGE");
  CHECK(download("j", "../f", 0) == "FILE_NOT_FOUND");
  CHECK(download("i", "f", 0) == "JOB_NOT_FOUND");
}

}  // namespace
}  // namespace lorad::server
