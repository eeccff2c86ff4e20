// Workers on other hosts: who is let in by which certificate, and what is said to both sides.
#include <spdlog/sinks/ringbuffer_sink.h>
#include <spdlog/spdlog.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/errors/errors.h"
#include "storage/credentials/certificate.h"
#include "storage/files/sha256.h"
#include "storage/models/model_directory.h"
#include "tests/server/services/api_fixture.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

const absl::Time kNow =
    absl::FromCivil(absl::CivilSecond(2026, 3, 1, 12, 0, 0), absl::UTCTimeZone());
constexpr absl::Duration kDay = absl::Hours(24);
// gRPC's own check of the coordinator's certificate goes by the machine's clock.
const storage::Validity kWide = {absl::FromUnixSeconds(0), absl::Now() + 3650 * kDay};

// The log, while it lives.
class Log {
 public:
  Log() : before_(spdlog::default_logger()) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("test", lines_));
  }
  ~Log() { spdlog::set_default_logger(before_); }
  bool Says(const std::string& part) {
    return Eventually([&] {
      for (const std::string& line : lines_->last_formatted()) {
        if (line.find(part) != std::string::npos) return true;
      }
      return false;
    });
  }

 private:
  const std::shared_ptr<spdlog::sinks::ringbuffer_sink_mt> lines_ =
      std::make_shared<spdlog::sinks::ringbuffer_sink_mt>(100);
  const std::shared_ptr<spdlog::logger> before_;
};

struct DoorFixture {
  explicit DoorFixture(FindMpiServer find_mpi_server = nullptr)
      : authority(storage::Authority::Make(kWide)),
        api(storage::RealFiles(), Options(std::move(find_mpi_server))) {
    api.driver.answer = [](const Request& request) -> absl::StatusOr<ReplyValue> {
      if (std::holds_alternative<ShardUploaded>(request)) return ReplyValue(std::monostate());
      return ReplyValue(v1::Job());
    };
  }

  ApiServerOptions Options(FindMpiServer find_mpi_server) {
    ApiServerOptions options;
    options.find_mpi_server = std::move(find_mpi_server);
    options.worker_listen = {"127.0.0.1", 0};
    options.authority = std::make_shared<const storage::Authority>(authority);
    options.wall_clock = [this] { return kNow + absl::Seconds(seconds.load()); };
    return options;
  }

  std::string Address() const { return api.server->worker_address().ToText(); }

  // Shows `certificate` for `key`; none where it is empty.
  std::shared_ptr<grpc::Channel> Channel(const std::string& key, const std::string& certificate) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetSslTargetNameOverride(storage::kCoordinatorName);
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = authority.certificate();
    if (!certificate.empty()) options.pem_private_key = key;
    options.pem_cert_chain = certificate;
    return grpc::CreateCustomChannel(Address(), grpc::SslCredentials(options), arguments);
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& worker, const storage::Authority& by,
                                           const storage::Validity& validity) {
    const std::string key = storage::MakeKey();
    return Channel(key, *by.SignWorker(*storage::MakeRequest(key), worker, validity));
  }
  std::shared_ptr<grpc::Channel> ChannelOf(const std::string& worker) {
    return ChannelOf(worker, authority, storage::ValidFor(90 * kDay, kNow));
  }

  std::atomic<int64_t> seconds = 0;  // since kNow
  const storage::Authority authority;
  ApiFixture api;
};

wire::WorkerMessage Hello(const std::string& name) {
  wire::WorkerMessage message;
  message.mutable_hello()->set_worker(name);
  message.mutable_hello()->set_protocol_version(1);
  return message;
}

// How a control stream ends on which `name` says hello.
grpc::Status Greet(const std::shared_ptr<grpc::Channel>& channel, const std::string& name) {
  Context context;
  auto stream = wire::Coordinator::NewStub(channel)->Control(&context);
  stream->Write(Hello(name));
  wire::CoordinatorMessage message;
  while (stream->Read(&message)) {
  }
  return stream->Finish();
}

// A control stream that stands.
struct Stream {
  Stream(DoorFixture& door, const std::shared_ptr<grpc::Channel>& channel, const std::string& name,
         size_t index)
      : stub(wire::Coordinator::NewStub(channel)), stream(stub->Control(&context)) {
    REQUIRE(stream->Write(Hello(name)));
    REQUIRE(Eventually([&] { return door.api.driver.sender(index) != nullptr; }));
    sender = door.api.driver.sender(index);
  }
  ~Stream() {
    context.TryCancel();
    stream->Finish();
  }
  void Send(const wire::CoordinatorMessage& order) { sender->Send(order); }

  Context context;
  std::unique_ptr<wire::Coordinator::Stub> stub;
  std::unique_ptr<grpc::ClientReaderWriter<wire::WorkerMessage, wire::CoordinatorMessage>> stream;
  std::shared_ptr<WorkerSender> sender;
};

wire::CoordinatorMessage SaveOrder(int64_t epoch) {
  wire::CoordinatorMessage message;
  message.mutable_window()->set_epoch(epoch);
  wire::Operation& save = *message.mutable_window()->add_operations();
  save.set_kind(wire::Operation::SAVE);
  save.set_job("j");
  save.set_step(1);
  return message;
}

std::string Upload(const std::shared_ptr<grpc::Channel>& channel, int64_t epoch) {
  Context context;
  wire::UploadShardResponse response;
  auto writer = wire::Coordinator::NewStub(channel)->UploadShard(&context, &response);
  wire::UploadShardRequest message;
  message.mutable_header()->set_job("j");
  message.mutable_header()->set_step(1);
  message.mutable_header()->set_epoch(epoch);
  message.mutable_header()->set_sha256(storage::Sha256::Of("tensor"));
  writer->Write(message);
  message.set_chunk("tensor");
  writer->Write(message);
  writer->WritesDone();
  return Summary(writer->Finish());
}

TEST_CASE("a worker is let in by its certificate, under the name in it") {
  DoorFixture door;
  Log log;
  const auto channel = door.ChannelOf("b");
  {
    Stream stream(door, channel, "b", 0);
    CHECK(door.api.driver.worker_log().at(0) == "connected b");
  }
  const grpc::Status other = Greet(channel, "a");
  CHECK(other.error_code() == grpc::PERMISSION_DENIED);
  CHECK(Summary(other) == "WORKER_NAME_NOT_CERTIFIED");
  CHECK(other.error_message().find("it calls itself 'a', and its certificate is of worker 'b'") !=
        std::string::npos);
  CHECK(log.Says("refused worker 'a' at 127.0.0.1: WORKER_NAME_NOT_CERTIFIED: "));
  CHECK(door.api.driver.sender(1) == nullptr);
}

TEST_CASE("a worker without a certificate that holds is refused, and both sides read why") {
  DoorFixture door;
  const storage::Authority other = storage::Authority::Make(kWide);
  const storage::Validity day = storage::ValidFor(kDay, kNow);
  const storage::Validity past = {day.from - 9 * kDay, day.until - 9 * kDay};
  const storage::Validity future = {day.from + 9 * kDay, day.until + 9 * kDay};
  struct Row {
    std::shared_ptr<grpc::Channel> channel;
    std::string reason;
  } const rows[] = {
      {door.Channel("", ""), "CERTIFICATE_MISSING"},
      {door.ChannelOf("b", door.authority, past), "CERTIFICATE_EXPIRED"},
      {door.ChannelOf("b", door.authority, future), "CERTIFICATE_NOT_YET_VALID"},
      {door.ChannelOf("b", other, day), "CERTIFICATE_OF_ANOTHER_AUTHORITY"},
      {door.Channel(storage::MakeKey(), ""), "CERTIFICATE_MISSING"},
  };
  for (const Row& row : rows) {
    INFO(row.reason);
    Log log;
    const grpc::Status status = Greet(row.channel, "b");
    CHECK(Summary(status) == row.reason);
    // Once a minute: the last row's line is the first one's.
    if (&row != &rows[4]) CHECK(log.Says("refused 127.0.0.1: " + row.reason + ": "));
    CHECK(Upload(row.channel, 1) == row.reason);
  }
  CHECK(door.api.driver.worker_log().empty());
}

TEST_CASE("a certificate ends while its worker is connected") {
  DoorFixture door;
  const auto channel = door.ChannelOf("b", door.authority, storage::ValidFor(kDay, kNow));
  Stream stream(door, channel, "b", 0);
  wire::CoordinatorMessage form;
  form.mutable_form_group()->set_epoch(7);
  stream.Send(form);
  stream.Send(SaveOrder(7));
  CHECK(Upload(channel, 7).empty());
  door.seconds = 2 * 24 * 3600;
  CHECK(Upload(channel, 7) == "CERTIFICATE_EXPIRED");
  wire::CoordinatorMessage order;  // the stream stands
  REQUIRE(stream.stream->Read(&order));
  CHECK(order.has_form_group());
}

TEST_CASE("bulk calls are good for a worker's own group alone") {
  DoorFixture door;
  const auto a = door.ChannelOf("a");
  const auto b = door.ChannelOf("b");
  Stream first(door, a, "a", 0);
  Stream second(door, b, "b", 1);
  wire::CoordinatorMessage form;
  form.mutable_form_group()->set_epoch(7);
  first.Send(form);
  first.Send(SaveOrder(7));
  CHECK(Upload(b, 7) == "NOT_A_WORKERS_GROUP");
  CHECK(Upload(a, 7).empty());
  // Of this host, where the kernel says who may speak.
  CHECK(Upload(door.api.channel, 7).empty());

  wire::CoordinatorMessage load;
  load.mutable_window()->set_epoch(7);
  load.mutable_window()->add_operations()->set_kind(wire::Operation::LOAD_SLOT);
  load.mutable_window()->mutable_operations(0)->set_job("j");
  load.mutable_window()->mutable_operations(0)->set_content("adapter a");
  first.Send(load);
  const auto fetch = [](const std::shared_ptr<grpc::Channel>& channel) {
    Context context;
    wire::FetchSlotContentRequest request;
    request.set_epoch(7);
    request.set_job("j");
    request.set_content("adapter a");
    auto reader = wire::Coordinator::NewStub(channel)->FetchSlotContent(&context, request);
    wire::Chunk chunk;
    while (reader->Read(&chunk)) {
    }
    return Summary(reader->Finish());
  };
  CHECK(fetch(b) == "NOT_A_WORKERS_GROUP");
  CHECK(fetch(a) != "NOT_A_WORKERS_GROUP");
}

TEST_CASE("bulk calls are good for every stage of a group, for as long as it is one") {
  DoorFixture door;
  const auto a = door.ChannelOf("a");
  const auto b = door.ChannelOf("b");
  const auto c = door.ChannelOf("c");
  const std::string refused = "NOT_A_WORKERS_GROUP";
  Stream first(door, a, "a", 0);
  std::optional<Stream> second(std::in_place, door, b, "b", 1);
  Stream third(door, c, "c", 2);
  wire::CoordinatorMessage form;
  form.mutable_form_group()->set_epoch(7);
  form.mutable_form_group()->set_stages(2);
  first.Send(form);
  form.mutable_form_group()->set_stage(1);
  second->Send(form);
  first.Send(SaveOrder(7));
  CHECK(Upload(a, 7).empty());
  CHECK(Upload(b, 7) == refused);  // which was not told to save
  second->Send(SaveOrder(7));
  CHECK(Upload(a, 7).empty());
  CHECK(Upload(b, 7).empty());
  CHECK(Upload(c, 7) == refused);
  CHECK(Upload(door.api.channel, 7).empty());  // of this host

  second.reset();
  CHECK(Eventually([&] { return Upload(b, 7) == refused; }));
  CHECK(Upload(a, 7).empty());
  wire::CoordinatorMessage dissolve;
  dissolve.mutable_dissolve_group()->set_epoch(7);
  third.Send(dissolve);  // of no group of its own
  CHECK(Upload(a, 7).empty());
  first.Send(dissolve);
  CHECK(Upload(a, 7) == refused);
}

TEST_CASE("what a model's files hold is told to the worker that is to load it") {
  DoorFixture door;
  const auto a = door.ChannelOf("a");
  Stream stream(door, a, "a", 0);
  std::filesystem::create_directories(door.api.directory / "m");
  std::filesystem::copy("tests/golden/llama_gqa_untied/model", door.api.directory / "m");
  const auto model = storage::ModelDirectory::Open(door.api.directory / "m");
  REQUIRE(model.ok());
  wire::CoordinatorMessage form;
  form.mutable_form_group()->set_epoch(7);
  form.mutable_form_group()->set_model_path(model->path());
  form.mutable_form_group()->set_model_fingerprint(model->fingerprint());
  stream.Send(form);
  const auto describe = [](const std::shared_ptr<grpc::Channel>& channel, int64_t epoch,
                           std::vector<std::string>* told) {
    Context context;
    wire::DescribeModelRequest request;
    request.set_epoch(epoch);
    auto reader = wire::Coordinator::NewStub(channel)->DescribeModel(&context, request);
    wire::ModelPart part;
    told->clear();
    while (reader->Read(&part)) told->push_back(part.name() + " " + part.sha256());
    return Summary(reader->Finish());
  };
  std::vector<std::string> expected, told;
  for (const std::string& part : model->Parts()) {
    expected.push_back(part + " " + *model->PartSha256(part));
  }
  for (int i = 0; i < 2; ++i) {  // read, then known
    CHECK(describe(a, 7, &told).empty());
    CHECK(told == expected);
  }
  CHECK(describe(a, 6, &told) == "NOT_A_WORKERS_GROUP");
  CHECK(describe(door.ChannelOf("b"), 7, &told) == "NOT_A_WORKERS_GROUP");
  door.api.directory.Write("m/config.json", door.api.directory.Read("m/config.json") + " ");
  CHECK(describe(a, 7, &told) == "MODEL_CHANGED");
  CHECK(told.empty());
}

TEST_CASE("a stage that joins over MPI is told where the site's server is") {
  struct Case {
    int64_t epoch;
    const char* silent;
    const char* answer;
  };
  const Case cases[] = {
      {7, "", "uri of now"}, {7, "uri", "MPI_SERVER_STARTS"}, {6, "", "NOT_A_WORKERS_GROUP"}};
  for (const bool site_has_one : {true, false}) {
    DoorFixture door(site_has_one ? FindMpiServer([](const std::string& silent) {
      absl::StatusOr<std::string> found = "uri of now";
      if (silent == "uri") found = Unavailable("MPI_SERVER_STARTS", "it is being started", 1);
      return found;
    })
                                  : nullptr);
    const auto a = door.ChannelOf("a");
    Stream stream(door, a, "a", 0);
    wire::CoordinatorMessage form;
    form.mutable_form_group()->set_epoch(7);
    stream.Send(form);
    const auto find = [](const std::shared_ptr<grpc::Channel>& channel, int64_t epoch,
                         const std::string& silent) {
      Context context;
      wire::FindMpiServerRequest request;
      request.set_epoch(epoch);
      request.set_silent_uri(silent);
      wire::FindMpiServerResponse response;
      const grpc::Status status =
          wire::Coordinator::NewStub(channel)->FindMpiServer(&context, request, &response);
      return status.ok() ? response.uri() : Summary(status);
    };
    for (const Case& c : cases) {
      const bool none = !site_has_one && c.epoch == 7;
      CHECK(find(a, c.epoch, c.silent) == (none ? "NO_MPI_SERVER" : c.answer));
    }
    CHECK(find(door.ChannelOf("b"), 7, "") == "NOT_A_WORKERS_GROUP");
  }
}

TEST_CASE("the workers' port serves workers alone") {
  DoorFixture door;
  const auto channel = door.ChannelOf("b");
  Context context;
  v1::Job job;
  const grpc::Status refused = v1::Jobs::NewStub(channel)->GetJob(&context, {}, &job);
  CHECK(refused.error_code() == grpc::PERMISSION_DENIED);
  CHECK(refused.error_message().find("NOT_SERVED_HERE: this port is for workers") == 0);
  Context local;
  CHECK(v1::Jobs::NewStub(door.api.channel)->GetJob(&local, {}, &job).ok());

  // A client that speaks no TLS learns nothing, and the log says that it was there.
  Log log;
  Context plain;
  const grpc::Status unheard =
      v1::Jobs::NewStub(grpc::CreateChannel(door.Address(), grpc::InsecureChannelCredentials()))
          ->GetJob(&plain, {}, &job);
  CHECK(unheard.error_code() == grpc::UNAVAILABLE);
  CHECK(log.Says("refused 127.0.0.1: TLS_NOT_COME_ABOUT: "));
}

TEST_CASE("a certificate is renewed over its own connection, for as long again") {
  DoorFixture door;
  const auto channel = door.ChannelOf("b", door.authority, storage::ValidFor(kDay, kNow));
  const std::string key = storage::MakeKey();
  const auto renew = [&](const std::shared_ptr<grpc::Channel>& on, const std::string& request,
                         std::string* certificate) {
    Context context;
    wire::RenewCertificateRequest message;
    message.set_request(request);
    wire::RenewCertificateResponse response;
    const grpc::Status status =
        wire::Coordinator::NewStub(on)->RenewCertificate(&context, message, &response);
    *certificate = response.certificate();
    return Summary(status);
  };
  door.seconds = 20 * 3600;
  std::string certificate;
  REQUIRE(renew(channel, *storage::MakeRequest(key), &certificate).empty());
  const absl::Time later = kNow + absl::Hours(20);
  CHECK(*storage::ValidityOf(certificate) == storage::ValidFor(kDay, later));
  CHECK(*storage::WorkerOf(certificate, door.authority.certificate(), later) == "b");
  CHECK(storage::BelongTogether(key, certificate));

  door.seconds = 30 * 3600;
  std::string ignored;
  CHECK(renew(channel, *storage::MakeRequest(key), &ignored) == "CERTIFICATE_EXPIRED");
  const auto renewed = door.Channel(key, certificate);
  CHECK(renew(renewed, "no request", &ignored) == "REQUEST_DAMAGED");
  CHECK(renew(door.api.channel, *storage::MakeRequest(key), &ignored) == "CERTIFICATE_MISSING");
  Stream stream(door, renewed, "b", 0);
}

}  // namespace
}  // namespace lorad::server
