// Streams and connections that do nothing, users who may not speak, and clients that vanish: nobody
// else notices.
#include <arpa/inet.h>
#include <grpcpp/create_channel_posix.h>
#include <sys/fsuid.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "lorad/v1/adapters.grpc.pb.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"
#include "storage/files/sha256.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

constexpr uid_t kNobody = 65534;

// Of this thread and for files alone, which is what the kernel says of its connections.
bool CanBeNobody() {
  bool can = false;
  std::thread([&can] {
    setfsuid(kNobody);
    can = setfsuid(kNobody) == static_cast<int>(kNobody);
  }).join();
  return can;
}
constexpr absl::Duration kShort = absl::Milliseconds(300);
constexpr absl::Duration kLong = absl::Minutes(1);

ApiServerOptions Waits(absl::Duration first_message, absl::Duration idle) {
  ApiServerOptions options;
  options.first_message_wait = first_message;
  options.idle_wait = idle;
  return options;
}

struct EdgeFixture : ApiFixture {
  explicit EdgeFixture(const ApiServerOptions& options = {})
      : ApiFixture(storage::RealFiles(), options),
        jobs(v1::Jobs::NewStub(channel)),
        datasets(v1::Datasets::NewStub(channel)),
        workers(wire::Coordinator::NewStub(channel)) {
    driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
      if (std::holds_alternative<v1::GetJobRequest>(request)) return ReplyValue(v1::Job());
      if (const auto* create = std::get_if<CreateDataset>(&request)) {
        return ReplyValue(create->dataset);
      }
      if (std::holds_alternative<ShardUploaded>(request)) return ReplyValue(std::monostate());
      return NotFound("thing", "x");
    };
  }

  static std::string GetJob(const std::shared_ptr<grpc::Channel>& channel) {
    Context context;
    v1::Job job;
    return Summary(v1::Jobs::NewStub(channel)->GetJob(&context, {}, &job));
  }

  std::string Upload() {
    Context context;
    v1::Dataset dataset;
    auto writer = datasets->CreateDataset(&context, &dataset);
    v1::CreateDatasetRequest message;
    message.mutable_config()->set_name("d");
    writer->Write(message);
    message.set_chunk("{\"text\": \"one\"}\n");
    writer->Write(message);
    writer->WritesDone();
    return Summary(writer->Finish());
  }

  // TCP connections that never say anything. The descriptors are the caller's.
  std::vector<int> Connect(int count) const {
    std::vector<int> connections;
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(server->address().port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int i = 0; i < count; ++i) {
      connections.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      REQUIRE(connect(connections.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) ==
              0);
    }
    return connections;
  }

  // A channel whose connection belongs to another user.
  std::shared_ptr<grpc::Channel> ChannelOf(uid_t uid) const {
    int fd = -1;
    // The user of a file system call is a thread's own affair.
    std::thread([&] {
      setfsuid(uid);
      fd = Connect(1).front();
    }).join();
    return grpc::CreateInsecureChannelFromFd("other-user", fd);
  }

  std::unique_ptr<v1::Jobs::Stub> jobs;
  std::unique_ptr<v1::Datasets::Stub> datasets;
  std::unique_ptr<wire::Coordinator::Stub> workers;
};

// A worker that forms a group under epoch 7.
struct Worker {
  explicit Worker(EdgeFixture& api, const std::shared_ptr<grpc::Channel>& channel)
      : stub(wire::Coordinator::NewStub(channel)), stream(stub->Control(&context)) {
    wire::WorkerMessage hello;
    hello.mutable_hello()->set_worker("w");
    hello.mutable_hello()->set_protocol_version(1);
    REQUIRE(stream->Write(hello));
    REQUIRE(Eventually([&] { return api.driver.sender(0) != nullptr; }));
    wire::CoordinatorMessage form;
    form.mutable_form_group()->set_epoch(7);
    api.driver.sender(0)->Send(form);
    wire::CoordinatorMessage window;
    window.mutable_window()->set_epoch(7);
    window.mutable_window()->add_operations()->set_kind(wire::Operation::SAVE);
    window.mutable_window()->mutable_operations(0)->set_job("j");
    window.mutable_window()->mutable_operations(0)->set_step(1);
    api.driver.sender(0)->Send(window);
    REQUIRE(stream->Read(&form));
    REQUIRE(stream->Read(&window));
  }
  ~Worker() {
    context.TryCancel();
    stream->Finish();
  }

  std::string Save() {
    Context call;
    wire::UploadShardResponse response;
    auto writer = stub->UploadShard(&call, &response);
    wire::UploadShardRequest message;
    message.mutable_header()->set_epoch(7);
    message.mutable_header()->set_job("j");
    message.mutable_header()->set_step(1);
    message.mutable_header()->set_sha256(storage::Sha256::Of("tensor"));
    writer->Write(message);
    message.set_chunk("tensor");
    writer->Write(message);
    writer->WritesDone();
    return Summary(writer->Finish());
  }

  Context context;
  std::unique_ptr<wire::Coordinator::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<wire::WorkerMessage, wire::CoordinatorMessage>> stream;
};

TEST_CASE("a stream on which no first message comes ends, whichever it is") {
  EdgeFixture api(Waits(kShort, kLong));
  auto adapters = v1::Adapters::NewStub(api.channel);
  Context contexts[5];
  v1::Dataset dataset;
  v1::Adapter adapter;
  wire::UploadShardResponse shard;
  const absl::Time began = absl::Now();
  auto create = api.datasets->CreateDataset(&contexts[0], &dataset);
  auto import = adapters->ImportAdapter(&contexts[1], &adapter);
  auto upload = api.workers->UploadShard(&contexts[2], &shard);
  auto validate = api.datasets->ValidateDataset(&contexts[3]);
  auto control = api.workers->Control(&contexts[4]);
  for (const grpc::Status& status : {create->Finish(), import->Finish(), upload->Finish(),
                                     validate->Finish(), control->Finish()}) {
    CHECK(status.error_code() == grpc::DEADLINE_EXCEEDED);
    CHECK(Summary(status) == "FIRST_MESSAGE_LATE");
  }
  CHECK(absl::Now() - began < absl::Seconds(10));
}

TEST_CASE("an upload that falls silent ends, and nothing is kept of it") {
  EdgeFixture api(Waits(kLong, kShort));
  Context context;
  v1::Dataset dataset;
  auto writer = api.datasets->CreateDataset(&context, &dataset);
  v1::CreateDatasetRequest message;
  message.mutable_config()->set_name("d");
  writer->Write(message);
  message.set_chunk("{\"text\": \"one\"}\n");
  writer->Write(message);
  CHECK(Eventually([&] { return api.Uploads().size() == 1; }));
  const grpc::Status status = writer->Finish();
  CHECK(status.error_code() == grpc::DEADLINE_EXCEEDED);
  CHECK(Summary(status) == "STREAM_IDLE");
  CHECK(api.Uploads().empty());
}

TEST_CASE("a download that is not read ends") {
  EdgeFixture api(Waits(kLong, kShort));
  const std::string bytes(32 << 20, 'x');
  api.directory.Write("checkpoint/f", bytes);
  api.driver.checkpoint = [&](const v1::GetCheckpointRequest&, std::string* path) {
    *path = api.directory / "checkpoint";
    v1::Checkpoint checkpoint;
    checkpoint.add_files()->set_name("f");
    checkpoint.mutable_files(0)->set_size_bytes(static_cast<int64_t>(bytes.size()));
    return absl::StatusOr<v1::Checkpoint>(checkpoint);
  };
  Context context;
  v1::DownloadCheckpointRequest request;
  request.set_file("f");
  auto reader = v1::Checkpoints::NewStub(api.channel)->DownloadCheckpoint(&context, request);
  // Piece by piece, so that the server has its time where the machine stands still for some.
  for (int i = 0; i < 200; ++i) absl::SleepFor(absl::Milliseconds(10));
  v1::DownloadCheckpointResponse response;
  size_t received = 0;
  while (reader->Read(&response)) received += response.chunk().size();
  CHECK(received < bytes.size());
  CHECK(reader->Finish().error_code() == grpc::CANCELLED);
}

TEST_CASE("uploads that send a config and then nothing keep nobody from uploading") {
  EdgeFixture api(Waits(kLong, kLong));
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<v1::Dataset> answers(2 * kUploadsMax);
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::CreateDatasetRequest>>> writers;
  v1::CreateDatasetRequest message;
  message.mutable_config()->set_name("d");
  for (v1::Dataset& answer : answers) {
    contexts.push_back(std::make_unique<Context>());
    writers.push_back(api.datasets->CreateDataset(contexts.back().get(), &answer));
    REQUIRE(writers.back()->Write(message));
  }
  CHECK(api.Upload().empty());
  for (const auto& context : contexts) context->TryCancel();
}

// Streams that are opened and say nothing, on connections of their own.
struct HalfOpen {
  HalfOpen(EdgeFixture& api, int count) : contexts(static_cast<size_t>(count)) {
    std::unique_ptr<v1::Datasets::Stub> stub;
    answers.resize(contexts.size());
    for (size_t i = 0; i < contexts.size(); ++i) {
      if (i % 250 == 0) stub = v1::Datasets::NewStub(api.NewChannel());
      contexts[i] = std::make_unique<grpc::ClientContext>();
      streams.push_back(stub->AsyncCreateDataset(contexts[i].get(), &answers[i], &queue, nullptr));
    }
    void* tag;
    bool ok;
    for (size_t i = 0; i < contexts.size(); ++i) queue.Next(&tag, &ok);  // they are on their way
  }
  ~HalfOpen() {
    std::vector<grpc::Status> statuses(contexts.size());
    for (size_t i = 0; i < contexts.size(); ++i) {
      contexts[i]->TryCancel();
      streams[i]->Finish(&statuses[i], nullptr);
    }
    void* tag;
    bool ok;
    for (size_t i = 0; i < contexts.size(); ++i) queue.Next(&tag, &ok);
    queue.Shutdown();
    queue.Next(&tag, &ok);
  }

  grpc::CompletionQueue queue;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  std::vector<v1::Dataset> answers;
  std::vector<std::unique_ptr<grpc::ClientAsyncWriter<v1::CreateDatasetRequest>>> streams;
};

TEST_CASE("ten thousand silent streams and two thousand silent connections hold up nobody") {
  EdgeFixture api(Waits(kLong, kLong));
  const std::vector<int> connections = api.Connect(2000);
  const HalfOpen streams(api, 10'000);
  auto stub = v1::Jobs::NewStub(api.NewChannel());
  // The best of three: other tests run on the same cores.
  absl::Duration p99 = absl::InfiniteDuration();
  for (int attempt = 0; attempt < 3 && p99 >= absl::Milliseconds(50); ++attempt) {
    std::vector<absl::Duration> times;
    for (int i = 0; i < 500; ++i) {
      Context context;
      v1::Job job;
      const absl::Time began = absl::Now();
      REQUIRE(stub->GetJob(&context, {}, &job).ok());
      times.push_back(absl::Now() - began);
    }
    std::sort(times.begin(), times.end());
    UNSCOPED_INFO("p50 " << times[250] << ", p99 " << times[495] << ", most " << times.back());
    p99 = std::min(p99, times[495]);
  }
  CHECK(p99 < absl::Milliseconds(50));
  CHECK(api.Upload().empty());
  for (const int fd : connections) close(fd);
}

TEST_CASE("idle connections make place for new ones; those with calls stay") {
  ApiServerOptions options;
  options.connections_max = 40;
  EdgeFixture api(options);
  Worker worker(api, api.NewChannel());
  const std::vector<int> connections = api.Connect(110);
  for (int i = 0; i < 3; ++i) CHECK(EdgeFixture::GetJob(api.NewChannel()).empty());
  CHECK(worker.Save().empty());
  wire::CoordinatorMessage order;
  order.mutable_dissolve_group()->set_epoch(9);
  api.driver.sender(0)->Send(order);
  REQUIRE(worker.stream->Read(&order));
  CHECK(order.dissolve_group().epoch() == 9);
  for (const int fd : connections) close(fd);
}

TEST_CASE("where all connections have calls, a share is kept for workers") {
  ApiServerOptions options = Waits(kLong, kLong);
  options.connections_max = 8;  // two of them for workers
  EdgeFixture api(options);
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<v1::Dataset> answers(6);
  std::vector<std::unique_ptr<grpc::ClientWriter<v1::CreateDatasetRequest>>> writers;
  for (v1::Dataset& answer : answers) {
    auto stub = v1::Datasets::NewStub(api.NewChannel());
    contexts.push_back(std::make_unique<Context>());
    writers.push_back(stub->CreateDataset(contexts.back().get(), &answer));
    v1::CreateDatasetRequest message;
    message.mutable_config()->set_name("d");
    REQUIRE(writers.back()->Write(message));
    message.set_chunk("x");
    REQUIRE(writers.back()->Write(message));
  }
  REQUIRE(Eventually([&] { return api.Uploads().size() == answers.size(); }));
  CHECK(EdgeFixture::GetJob(api.NewChannel()) == "TOO_MANY_CONNECTIONS");
  Worker worker(api, api.NewChannel());
  CHECK(worker.Save().empty());
  for (const auto& context : contexts) context->TryCancel();
  CHECK(Eventually([&] { return EdgeFixture::GetJob(api.NewChannel()).empty(); }));
}

TEST_CASE("another user of the machine may not speak, be it as a client or as a worker") {
  if (!CanBeNobody()) {
    WARN("skipped: only root, outside of a sandbox, can connect as another user");
    return;
  }
  EdgeFixture api;
  CHECK(EdgeFixture::GetJob(api.channel).empty());
  const auto stranger = api.ChannelOf(kNobody);
  Context contexts[4];
  v1::Job job;
  const grpc::Status status = v1::Jobs::NewStub(stranger)->GetJob(&contexts[0], {}, &job);
  CHECK(status.error_code() == grpc::PERMISSION_DENIED);
  CHECK(Summary(status) == "NOT_YOUR_DAEMON");
  CHECK_THAT(status.error_message(),
             Catch::Contains("you are user 65534") && Catch::Contains("--allow-user 65534"));
  auto workers = wire::Coordinator::NewStub(stranger);
  auto control = workers->Control(&contexts[1]);
  CHECK(Summary(control->Finish()) == "NOT_YOUR_DAEMON");
  CHECK(Summary(v1::Jobs::NewStub(stranger)->WatchJobs(&contexts[2], {})->Finish()) ==
        "NOT_YOUR_DAEMON");
  v1::Dataset dataset;
  CHECK(Summary(v1::Datasets::NewStub(stranger)->CreateDataset(&contexts[3], &dataset)->Finish()) ==
        "NOT_YOUR_DAEMON");
  CHECK(api.driver.worker_log().empty());
  CHECK(api.driver.Requests<v1::GetJobRequest>().size() == 1);
}

TEST_CASE("a user who is allowed may speak") {
  if (!CanBeNobody()) {
    WARN("skipped: only root, outside of a sandbox, can connect as another user");
    return;
  }
  ApiServerOptions options;
  options.allowed_users = {kNobody};
  EdgeFixture api(options);
  CHECK(EdgeFixture::GetJob(api.ChannelOf(kNobody)).empty());
  CHECK(EdgeFixture::GetJob(api.ChannelOf(kNobody - 1)) == "NOT_YOUR_DAEMON");
}

TEST_CASE("strangers' connections take the place of nobody") {
  if (!CanBeNobody()) {
    WARN("skipped: only root, outside of a sandbox, can connect as another user");
    return;
  }
  EdgeFixture api;
  std::vector<int> strangers;
  std::thread([&] {
    setfsuid(kNobody);
    strangers = api.Connect(100);
  }).join();
  char byte;
  const auto is_closed = [&](int fd) { return recv(fd, &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 0; };
  CHECK(Eventually(
      [&] { return std::count_if(strangers.begin(), strangers.end(), is_closed) >= 84; }));
  CHECK(EdgeFixture::GetJob(api.NewChannel()).empty());
  for (const int fd : strangers) close(fd);
}

TEST_CASE("a client that vanishes while the driver is asked is forgotten") {
  EdgeFixture api;
  api.driver.hold = true;
  Context contexts[2];
  grpc::Status statuses[2];
  std::thread unary([&] {
    v1::Job job;
    statuses[0] = api.jobs->GetJob(&contexts[0], {}, &job);
  });
  std::thread upload([&] {
    v1::Dataset dataset;
    auto writer = api.datasets->CreateDataset(&contexts[1], &dataset);
    v1::CreateDatasetRequest message;
    message.mutable_config()->set_name("d");
    writer->Write(message);
    message.set_chunk("{\"text\": \"one\"}\n");
    writer->Write(message);
    writer->WritesDone();
    statuses[1] = writer->Finish();
  });
  REQUIRE(Eventually([&] { return api.driver.held() == 2; }));
  for (Context& context : contexts) context.TryCancel();
  unary.join();
  upload.join();
  for (const grpc::Status& status : statuses) CHECK(status.error_code() == grpc::CANCELLED);
  api.driver.AnswerHeld(absl::InternalError("late"));
  CHECK(api.Uploads().size() == 1);  // the driver's, which was asked
}

TEST_CASE("a clean stop does not wait for a driver that does not answer, nor for any stream") {
  auto api = std::make_unique<EdgeFixture>(Waits(kLong, kLong));
  Context contexts[4];
  auto watch = api->jobs->WatchJobs(&contexts[0], {});
  api->driver.hold = true;
  v1::Dataset dataset;
  auto silent = api->datasets->CreateDataset(&contexts[1], &dataset);
  auto validate = api->datasets->ValidateDataset(&contexts[2]);
  v1::ValidateDatasetRequest config;
  config.mutable_config()->set_model("m");
  REQUIRE(validate->Write(config));
  std::thread unary([&] {
    v1::Job job;
    api->jobs->GetJob(&contexts[3], {}, &job);
  });
  REQUIRE(Eventually([&] { return api->driver.held() >= 2; }));
  const absl::Time began = absl::Now();
  api->server.reset();
  CHECK(absl::Now() - began < absl::Seconds(5));
  unary.join();
  CHECK(!watch->Finish().ok());
  CHECK(!silent->Finish().ok());
  CHECK(!validate->Finish().ok());
  api->driver.AnswerHeld(absl::InternalError("after the end"));
}

TEST_CASE("clients that vanish in any state of an upload leave nothing behind") {
  EdgeFixture api;
  for (int state = 0; state < 3; ++state) {
    Context context;
    v1::Dataset dataset;
    auto writer = api.datasets->CreateDataset(&context, &dataset);
    v1::CreateDatasetRequest message;
    message.mutable_config()->set_name("d");
    if (state > 0) REQUIRE(writer->Write(message));
    message.set_chunk("{\"text\": \"one\"}\n");
    if (state > 1) REQUIRE(writer->Write(message));
    context.TryCancel();
    CHECK(writer->Finish().error_code() == grpc::CANCELLED);
    CHECK(Eventually([&] { return api.Uploads().empty(); }));
  }
  CHECK(api.driver.Requests<CreateDataset>().empty());
}

}  // namespace
}  // namespace lorad::server
