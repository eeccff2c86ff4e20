// What the server does beside the services of lorad.v1: workers' streams, health, reflection, where
// it listens.
#include <grpcpp/generic/generic_stub.h>

#include <catch2/catch.hpp>
#include <filesystem>

#include "absl/time/clock.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/errors/errors.h"
#include "server/services/api_server.h"
#include "server/validation/limits.h"
#include "storage/adapters/peft.h"
#include "storage/files/sha256.h"
#include "storage/tensors/safetensors.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

// The first answer to a call with one message, as bytes.
std::string CallRaw(const std::shared_ptr<grpc::Channel>& channel, const std::string& method,
                    const std::string& message) {
  grpc::GenericStub stub(channel);
  Context context;
  grpc::CompletionQueue queue;
  auto call = stub.PrepareCall(&context, method, &queue);
  void* tag;
  bool ok;
  const auto next = [&] { return queue.Next(&tag, &ok) && ok; };
  call->StartCall(&context);
  REQUIRE(next());
  const grpc::Slice slice(message);
  call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
  if (next()) {  // else the call has ended before it was written
    call->WritesDone(nullptr);
    next();
  }
  grpc::ByteBuffer buffer;
  call->Read(&buffer, nullptr);
  const bool answered = next();
  std::vector<grpc::Slice> slices;
  if (answered) buffer.Dump(&slices);
  std::string bytes;
  for (const grpc::Slice& part : slices)
    bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
  grpc::Status status;
  call->Finish(&status, nullptr);
  next();
  return answered ? bytes : "error " + std::to_string(status.error_code());
}

TEST_CASE_METHOD(ApiFixture, "health and reflection") {
  const std::string serving("\x08\x01", 2);
  const std::string not_serving("\x08\x02", 2);
  CHECK(CallRaw(channel, "/grpc.health.v1.Health/Check", "") == serving);
  const std::string list_services("\x3a\x00", 2);
  const std::string services = CallRaw(
      channel, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", list_services);
  for (const char* name : {"lorad.v1.Jobs", "lorad.v1.Datasets", "lorad.v1.Models",
                           "lorad.v1.Adapters", "lorad.v1.Checkpoints", "lorad.v1.Cluster",
                           "lorad.worker.v1.Coordinator", "grpc.health.v1.Health"}) {
    CHECK_THAT(services, Catch::Contains(name));
  }
  server->BeginStop();
  CHECK(CallRaw(channel, "/grpc.health.v1.Health/Check", "") == not_serving);
}

TEST_CASE_METHOD(ApiFixture, "a request that is no message of its type is told so") {
  const std::string not_utf8("\x0a\x03\xff\xfe\xfd", 5);
  const std::string malformed = "error " + std::to_string(grpc::StatusCode::INVALID_ARGUMENT);
  for (const std::string method :
       {"/lorad.v1.Jobs/GetJob", "/lorad.v1.Jobs/CreateJob", "/lorad.v1.Jobs/WatchJobs"}) {
    CAPTURE(method);
    CHECK(CallRaw(channel, method, not_utf8) == malformed);
    CHECK(CallRaw(channel, method, "\xff") == malformed);
  }
  CHECK(CallRaw(channel, "/lorad.v1.Jobs/NoSuchMethod", "") ==
        "error " + std::to_string(grpc::StatusCode::UNIMPLEMENTED));
}

TEST_CASE_METHOD(ApiFixture,
                 "health of the services that create things says whether there is room") {
  const std::string serving("\x08\x01", 2);
  const std::string not_serving("\x08\x02", 2);
  for (const std::string& expected : {not_serving, serving}) {
    server->SetWritable(expected == serving);
    for (const std::string name :
         {"lorad.v1.Jobs", "lorad.v1.Datasets", "lorad.v1.Adapters", "lorad.v1.Models"}) {
      const std::string request = "\x0a" + std::string(1, static_cast<char>(name.size())) + name;
      CHECK(CallRaw(channel, "/grpc.health.v1.Health/Check", request) == expected);
    }
    CHECK(CallRaw(channel, "/grpc.health.v1.Health/Check", "") == serving);
  }
  server->BeginStop();
  server->SetWritable(true);
  CHECK(CallRaw(channel, "/grpc.health.v1.Health/Check", "") == not_serving);
}

struct WorkerFixture : ApiFixture {
  using Stream = grpc::ClientReaderWriter<wire::WorkerMessage, wire::CoordinatorMessage>;

  WorkerFixture() : stub(wire::Coordinator::NewStub(channel)) {}

  static wire::WorkerMessage Hello(const std::string& name, int version = 1) {
    wire::WorkerMessage message;
    message.mutable_hello()->set_worker(name);
    message.mutable_hello()->set_protocol_version(version);
    return message;
  }
  static wire::CoordinatorMessage Order(int64_t epoch) {
    wire::CoordinatorMessage message;
    message.mutable_dissolve_group()->set_epoch(epoch);
    return message;
  }
  static wire::CoordinatorMessage Form(int64_t epoch) {
    wire::CoordinatorMessage message;
    message.mutable_form_group()->set_epoch(epoch);
    return message;
  }
  static wire::CoordinatorMessage Load(int64_t epoch, const std::string& job,
                                       const std::string& content) {
    wire::CoordinatorMessage message;
    message.mutable_window()->set_epoch(epoch);
    wire::Operation& load = *message.mutable_window()->add_operations();
    load.set_kind(wire::Operation::LOAD_SLOT);
    load.set_job(job);
    load.set_content(content);
    return message;
  }
  static wire::CoordinatorMessage Save(int64_t epoch, const std::string& job, int64_t step) {
    wire::CoordinatorMessage message;
    message.mutable_window()->set_epoch(epoch);
    wire::Operation& save = *message.mutable_window()->add_operations();
    save.set_kind(wire::Operation::SAVE);
    save.set_job(job);
    save.set_step(step);
    return message;
  }
  // The sender that the driver was given, once it was.
  std::shared_ptr<WorkerSender> Sender(size_t index) {
    REQUIRE(Eventually([&] { return driver.sender(index) != nullptr; }));
    return driver.sender(index);
  }
  bool Logged(const std::string& line) {
    return Eventually([&] {
      const std::vector<std::string> log = driver.worker_log();
      return std::find(log.begin(), log.end(), line) != log.end();
    });
  }

  std::unique_ptr<wire::Coordinator::Stub> stub;
};

TEST_CASE_METHOD(WorkerFixture, "a worker says hello, gets orders in order, and reports") {
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  const auto sender = Sender(0);
  for (int64_t i = 1; i <= 100; ++i) sender->Send(Order(i));
  wire::CoordinatorMessage order;
  for (int64_t i = 1; i <= 100; ++i) {
    REQUIRE(stream->Read(&order));
    REQUIRE(order.dissolve_group().epoch() == i);
  }
  wire::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat()->set_epoch(3);
  REQUIRE(stream->Write(heartbeat));
  CHECK(Logged("said 1 heartbeat { epoch: 3 }"));
  stream->WritesDone();
  CHECK(stream->Finish().ok());
  CHECK(Logged("gone 1 the worker ended its control stream"));
  sender->Send(Order(1));  // after the stream is gone: nothing
  sender->Close(absl::OkStatus());
}

TEST_CASE_METHOD(WorkerFixture, "the driver ends a stream after its last order, with a reason") {
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  const auto sender = Sender(0);
  sender->Send(Order(7));
  sender->Close(AlreadyExists("worker", "w"));
  sender->Send(Order(8));
  wire::CoordinatorMessage order;
  REQUIRE(stream->Read(&order));
  CHECK(order.dissolve_group().epoch() == 7);
  CHECK(!stream->Read(&order));
  const grpc::Status status = stream->Finish();
  CHECK(status.error_code() == grpc::ALREADY_EXISTS);
  CHECK(ErrorInfoOf(status).reason() == "WORKER_EXISTS");
  CHECK(Logged("gone 1 " + status.error_message()));
}

TEST_CASE_METHOD(WorkerFixture, "a worker that dies is gone") {
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  Sender(0);
  context.TryCancel();
  CHECK(Logged("gone 1 the worker ended its control stream"));
  stream->Finish();
}

TEST_CASE_METHOD(WorkerFixture, "a worker that reads no orders is given up") {
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  const auto sender = Sender(0);
  wire::CoordinatorMessage large = Order(1);
  large.mutable_shutdown()->set_reason(std::string(64 << 10, 'x'));
  for (int i = 0; i < 2 * kWorkerOrdersMax; ++i) sender->Send(large);
  CHECK(Logged("gone 1 the worker left 1024 orders unread"));
  context.TryCancel();  // the client's own half would wait to be read
  stream->Finish();
}

TEST_CASE_METHOD(WorkerFixture, "hellos that are refused") {
  wire::WorkerMessage heartbeat;
  heartbeat.mutable_heartbeat();
  const std::pair<wire::WorkerMessage, std::string> cases[] = {
      {Hello("w", 2), "PROTOCOL_VERSION"},
      {Hello(""), "INVALID_FIELDS hello.worker: must be given;"},
      {Hello("a\nb"), "INVALID_FIELDS hello.worker: must not hold control characters;"},
      {heartbeat, "INVALID_FIELDS hello: must be the first message;"},
  };
  for (const auto& [message, summary] : cases) {
    Context context;
    auto stream = stub->Control(&context);
    stream->Write(message);
    wire::CoordinatorMessage order;
    CHECK(!stream->Read(&order));
    CHECK(Summary(stream->Finish()) == summary);
  }
  CHECK(driver.worker_log().empty());
}

TEST_CASE_METHOD(WorkerFixture, "shards are checked before they are handed over") {
  driver.answer = [](const Request&) { return ReplyValue(std::monostate()); };
  const auto upload = [&](int64_t epoch, int64_t size, const std::string& sha256) {
    Context context;
    wire::UploadShardResponse response;
    auto writer = stub->UploadShard(&context, &response);
    wire::UploadShardRequest message;
    message.mutable_header()->set_job("j");
    message.mutable_header()->set_step(2);
    message.mutable_header()->set_epoch(epoch);
    message.mutable_header()->set_size_bytes(size);
    message.mutable_header()->set_sha256(sha256);
    bool open = writer->Write(message);
    message.set_chunk("tensor");
    open = open && writer->Write(message);
    writer->WritesDone();
    return Summary(writer->Finish());
  };
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  Sender(0)->Send(Form(7));
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  Sender(0)->Send(Save(7, "other", 2));
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  Sender(0)->Send(Save(7, "j", 1));
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  Sender(0)->Send(Save(7, "j", 2));
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")).empty());
  CHECK(driver.Requests<ShardUploaded>().at(0).header.job() == "j");
  CHECK(Uploads().size() == 1);  // the driver's now
  CHECK(upload(7, 7, storage::Sha256::Of("tensor")) == "UPLOAD_INCOMPLETE");
  CHECK(upload(7, 6, storage::Sha256::Of("other")) == "UPLOAD_CORRUPT");
  CHECK(upload(6, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  CHECK(driver.Requests<ShardUploaded>().size() == 1);
  CHECK(Eventually([&] { return Uploads().size() == 1; }));
  Sender(0)->Send(Order(7));  // dissolves it
  CHECK(upload(7, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP");
  Sender(0)->Send(Form(8));
  Sender(0)->Send(Save(8, "j", 2));
  context.TryCancel();
  stream->Finish();
  CHECK(Eventually(
      [&] { return upload(8, 6, storage::Sha256::Of("tensor")) == "NOT_A_WORKERS_GROUP"; }));
}

TEST_CASE_METHOD(WorkerFixture, "a worker fetches what it was told to load, and nothing else") {
  storage::PeftConfig config;
  config.rank = 1;
  config.target_modules = {"q_proj"};
  const std::string path = "model.layers.0.self_attn.q_proj";
  const std::string other = "model.layers.1.self_attn.q_proj";
  const storage::SafetensorsLayout layout(
      {{storage::PeftKey(path, 'A'), storage::TensorType::kF32, {1, 4}},
       {storage::PeftKey(path, 'B'), storage::TensorType::kF32, {4, 1}},
       {storage::PeftKey(other, 'A'), storage::TensorType::kF32, {1, 4}},
       {storage::PeftKey(other, 'B'), storage::TensorType::kF32, {4, 1}}},
      {});
  for (const char* folder : {"data/adapters/a/", "outside/"}) {
    directory.Write(std::string(folder) + "adapter_config.json", storage::WritePeftConfig(config));
    directory.Write(std::string(folder) + "adapter_model.safetensors",
                    layout.prefix() + std::string(64, '\0'));
  }
  std::filesystem::create_directory_symlink(directory / "outside",
                                            directory / "data/adapters/way-out");
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(Hello("w")));
  const auto sender = Sender(0);
  sender->Send(Form(7));
  std::string fetched;
  const auto fetch = [&](int64_t epoch, const std::string& job, const std::string& content,
                         const std::vector<std::string>& tensors = {}) {
    Context call;
    wire::FetchSlotContentRequest request;
    request.set_epoch(epoch);
    request.set_job(job);
    request.set_content(content);
    request.mutable_tensors()->Add(tensors.begin(), tensors.end());
    auto reader = stub->FetchSlotContent(&call, request);
    wire::Chunk chunk;
    fetched.clear();
    while (reader->Read(&chunk)) fetched += chunk.data();
    const grpc::Status status = reader->Finish();
    return status.ok() ? (fetched.size() > 16 ? "content" : "too short") : Summary(status);
  };
  CHECK(fetch(7, "j", "adapter:adapters/a") == "NOT_A_WORKERS_GROUP");
  sender->Send(Load(7, "j", "adapter:adapters/a"));
  CHECK(fetch(7, "j", "adapter:adapters/a") == "content");
  // All of it, or what a stage of several has of it.
  const auto values = [&] {
    const auto header = storage::ParseSafetensorsHeader(fetched, fetched.size());
    REQUIRE(header.ok());
    CHECK(header->Find(storage::PeftKey(other, 'B')));
    return fetched.size() - header->data_begin;
  };
  CHECK(values() == 64);
  CHECK(fetch(7, "j", "adapter:adapters/a",
              {storage::PeftKey(other, 'A'), storage::PeftKey(other, 'B')}) == "content");
  CHECK(values() == 32);
  CHECK(fetch(6, "j", "adapter:adapters/a") == "NOT_A_WORKERS_GROUP");
  CHECK(fetch(7, "i", "adapter:adapters/a") == "NOT_A_WORKERS_GROUP");
  CHECK(fetch(7, "j", "adapter:adapters/b") == "NOT_A_WORKERS_GROUP");
  // Also what the coordinator itself named wrongly stays beneath its folders.
  for (const char* content :
       {"adapter:../../etc", "checkpoint:nowhere", "adapter:adapters/../../outside",
        "adapter:adapters/way-out", "adapter:adapters//etc", "adapter:uploads/x"}) {
    sender->Send(Load(7, "j", content));
    CHECK(fetch(7, "j", content) == "SLOT_CONTENT_NOT_FOUND");
  }
  context.TryCancel();
  stream->Finish();
}

TEST_CASE_METHOD(ApiFixture, "stopping ends calls that would never end") {
  auto stub = wire::Coordinator::NewStub(channel);
  Context context;
  auto stream = stub->Control(&context);
  REQUIRE(stream->Write(WorkerFixture::Hello("w")));
  REQUIRE(Eventually([&] { return driver.sender(0) != nullptr; }));
  server->BeginStop();
  server->Stop(absl::Now() + absl::Milliseconds(200));
  wire::CoordinatorMessage order;
  CHECK(!stream->Read(&order));
  server.reset();
}

TEST_CASE_METHOD(ApiFixture, "a port that is in use is said") {
  ApiServerOptions options;
  options.listen = server->address();
  const auto second = ApiServer::Start(options, driver);
  REQUIRE(!second.ok());
  CHECK(Reason(second.status()) == "PORT_IN_USE");
}

TEST_CASE("where to listen") {
  const std::tuple<std::string, std::string, std::string> cases[] = {
      {"127.0.0.1:7070", "127.0.0.1:7070", ""}, {"127.1.2.3:0", "127.1.2.3:0", ""},
      {"localhost:80", "127.0.0.1:80", ""},     {"[::1]:7070", "[::1]:7070", ""},
      {"0.0.0.0:7070", "", "NOT_LOOPBACK"},     {"[::]:7070", "", "NOT_LOOPBACK"},
      {"192.168.1.1:7070", "", "NOT_LOOPBACK"}, {"example.org:7070", "", "INVALID_LISTEN"},
      {"::1:7070", "", "INVALID_LISTEN"},       {"127.0.0.1", "", "INVALID_LISTEN"},
      {"127.0.0.1:", "", "INVALID_LISTEN"},     {"127.0.0.1:65536", "", "INVALID_LISTEN"},
      {":7070", "", "INVALID_LISTEN"},          {"", "", "INVALID_LISTEN"},
  };
  for (const auto& [text, listen, reason] : cases) {
    INFO(text);
    const absl::StatusOr<ListenAddress> address = ParseListen(text);
    CHECK((address.ok() ? address->ToText() : "") == listen);
    CHECK((address.ok() ? "" : Reason(address.status())) == reason);
  }
}

}  // namespace
}  // namespace lorad::server
