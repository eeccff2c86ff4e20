// The worker's end of the control stream against a coordinator that does as it is told: orders,
// reports, broken streams, bulk transfers, ends.
#include "worker/control.h"

#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <mutex>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "worker/grpc_bulk.h"
#include "worker/process.h"

namespace lorad::worker {
namespace {

using namespace std::chrono_literals;

// One stream at a time: what the test says goes down, what the worker says is kept.
class FakeCoordinator : public v1::Coordinator::Service {
 public:
  FakeCoordinator() { Start(0); }
  ~FakeCoordinator() override { StopServer(); }

  void Start(int port) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(this);
    {
      std::lock_guard lock(mutex_);
      closing_ = false;
    }
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  void StopServer() {
    Break();
    if (server_ != nullptr) server_->Shutdown(std::chrono::system_clock::now() + 200ms);
    server_.reset();
  }
  // Ends the stream that stands.
  void Break() {
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      if (context_ != nullptr) context_->TryCancel();
    }
    wake_.notify_all();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  int port() const { return port_; }

  void Send(v1::CoordinatorMessage message) {
    std::lock_guard lock(mutex_);
    orders_.push_back(std::move(message));
    wake_.notify_all();
  }

  // Waits for the next message that `wanted` takes; the others are dropped.
  v1::WorkerMessage Await(const std::function<bool(const v1::WorkerMessage&)>& wanted) {
    std::unique_lock lock(mutex_);
    v1::WorkerMessage found;
    const bool came = heard_.wait_for(lock, 20s, [&] {
      while (!messages_.empty()) {
        found = std::move(messages_.front());
        messages_.pop_front();
        if (wanted(found)) return true;
      }
      return false;
    });
    REQUIRE(came);
    return found;
  }
  v1::Hello AwaitHello() {
    return Await([](const v1::WorkerMessage& m) { return m.has_hello(); }).hello();
  }
  v1::Report AwaitReport(v1::Report::ContentCase kind) {
    return Await([&](const v1::WorkerMessage& m) {
             return m.has_report() && m.report().content_case() == kind;
           })
        .report();
  }

  grpc::Status Control(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<v1::CoordinatorMessage, v1::WorkerMessage>* stream) override {
    {
      std::lock_guard lock(mutex_);
      if (!refuse_.ok()) return refuse_;
      context_ = context;
      closing_ = false;
      orders_.clear();
      v1::CoordinatorMessage welcome;
      welcome.mutable_welcome()->set_heartbeat_ms(20);
      welcome.mutable_welcome()->set_lease_ms(lease_ms);
      welcome.mutable_welcome()->set_adopted(adopt);
      orders_.push_back(welcome);
    }
    std::thread writer([&] {
      std::unique_lock lock(mutex_);
      while (true) {
        wake_.wait(lock, [&] { return closing_ || !orders_.empty(); });
        if (closing_) return;
        const v1::CoordinatorMessage message = std::move(orders_.front());
        orders_.pop_front();
        lock.unlock();
        stream->Write(message);
        lock.lock();
      }
    });
    v1::WorkerMessage message;
    while (stream->Read(&message)) {
      std::lock_guard lock(mutex_);
      messages_.push_back(message);
      heard_.notify_all();
    }
    {
      std::lock_guard lock(mutex_);
      closing_ = true;
      context_ = nullptr;
    }
    wake_.notify_all();
    writer.join();
    return grpc::Status::OK;
  }

  grpc::Status FetchSlotContent(grpc::ServerContext*, const v1::FetchSlotContentRequest* request,
                                grpc::ServerWriter<v1::Chunk>* writer) override {
    if (request->content() != "shard") return {grpc::StatusCode::NOT_FOUND, "no such content"};
    for (size_t at = 0; at < shard.size(); at += 1000) {
      v1::Chunk chunk;
      chunk.set_data(shard.substr(at, 1000));
      writer->Write(chunk);
    }
    return grpc::Status::OK;
  }

  grpc::Status UploadShard(grpc::ServerContext*, grpc::ServerReader<v1::UploadShardRequest>* reader,
                           v1::UploadShardResponse*) override {
    v1::UploadShardRequest request;
    reader->Read(&request);
    header = request.header();
    std::string bytes;
    while (reader->Read(&request)) bytes += request.chunk();
    std::lock_guard lock(mutex_);
    shard = bytes;
    return grpc::Status::OK;
  }

  void Refuse(grpc::Status status) {
    std::lock_guard lock(mutex_);
    refuse_ = std::move(status);
  }

  // Set before what they decide happens.
  bool adopt = false;
  int lease_ms = 10000;
  std::string shard;
  v1::UploadShardRequest::Header header;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable heard_;
  grpc::ServerContext* context_ = nullptr;
  bool closing_ = false;
  grpc::Status refuse_;
  std::deque<v1::CoordinatorMessage> orders_;
  std::deque<v1::WorkerMessage> messages_;
};

// A worker's parts as main.cc puts them together.
struct Worker {
  explicit Worker(const std::string& coordinator)
      : backend(kernels::MakeCpuBackend(1)),
        bulk(coordinator),
        executor(backend.get(), &bulk, &reports, {.numerics_id = NumericsId(*backend)},
                 SteadyClock()),
        control({.coordinator = coordinator,
                 .hello = Hello(),
                 .pause_first_ms = 10,
                 .pause_last_ms = 50},
                &executor, &reports, SteadyClock()),
        thread([this] { status = control.Run(); }) {}
  ~Worker() {
    control.Stop();
    if (thread.joinable()) thread.join();
  }
  static v1::Hello Hello() {
    v1::Hello hello;
    hello.set_protocol_version(kProtocolVersion);
    hello.set_worker("w");
    return hello;
  }

  std::unique_ptr<kernels::Backend> backend;
  GrpcBulk bulk;
  ReportLog reports;
  Executor executor;
  ControlStream control;
  absl::Status status;
  std::thread thread;
};

v1::CoordinatorMessage FormOrder(int64_t epoch) {
  v1::CoordinatorMessage message;
  v1::FormGroup& order = *message.mutable_form_group();
  order.set_group("g");
  order.set_epoch(epoch);
  order.set_model_path(MakeRandomModel(std::filesystem::temp_directory_path() / "control_model"));
  order.set_stages(1);
  order.set_capacity_tokens(128);
  order.set_longest_sequence(100);
  return message;
}

v1::CoordinatorMessage LoadAndSave(const TestJob& job, const std::string& content, int64_t step,
                                   int64_t window) {
  v1::CoordinatorMessage message;
  message.mutable_window()->set_epoch(1);
  message.mutable_window()->set_number(window);
  v1::Operation& load = *message.mutable_window()->add_operations();
  load = Op(v1::Operation::LOAD_SLOT, job.name(), step);
  *load.mutable_slot() = job.spec;
  load.set_content(content);
  *message.mutable_window()->add_operations() = Op(v1::Operation::SAVE, job.name(), step);
  *message.mutable_window()->add_operations() = Op(v1::Operation::FREE_SLOT, job.name(), step);
  return message;
}

TestJob Job() { return MakeJob("a", 4, {"q_proj"}, RandomRows(4, 20, 90, 1), 2); }

TEST_CASE("orders go down, reports and heartbeats come up, bulk goes on calls of its own") {
  FakeCoordinator coordinator;
  Worker worker(coordinator.address());
  const v1::Hello hello = coordinator.AwaitHello();
  CHECK(hello.worker() == "w");
  CHECK(hello.epoch() == 0);
  coordinator.Send(FormOrder(1));
  const v1::Report formed = coordinator.AwaitReport(v1::Report::kGroupFormed);
  CHECK(formed.epoch() == 1);
  CHECK(formed.number() == 1);
  CHECK(formed.group_formed().reserved_bytes() > 0);
  const v1::WorkerMessage heartbeat = coordinator.Await(
      [](const v1::WorkerMessage& m) { return m.has_heartbeat() && m.heartbeat().epoch() == 1; });
  CHECK(heartbeat.heartbeat().peak_resident_bytes() >= heartbeat.heartbeat().resident_bytes());

  coordinator.Send(LoadAndSave(Job(), "", 0, 1));
  const v1::Report saved = coordinator.AwaitReport(v1::Report::kSaved);
  const std::string first = coordinator.shard;
  CHECK(saved.saved().bytes() == static_cast<int64_t>(first.size()));
  CHECK(saved.saved().sha256() == coordinator.header.sha256());
  CHECK(coordinator.header.numerics_id() == NumericsId(*worker.backend));
  coordinator.AwaitReport(v1::Report::kSlotFreed);
  coordinator.Send(LoadAndSave(Job(), "shard", 0, 2));
  coordinator.AwaitReport(v1::Report::kSlotFreed);
  CHECK(coordinator.shard == first);
  coordinator.Send(LoadAndSave(Job(), "nowhere", 0, 3));
  const v1::Report failed = coordinator.AwaitReport(v1::Report::kSlotFailed);
  CHECK_THAT(failed.slot_failed().message(), Catch::Contains("no such content"));

  v1::CoordinatorMessage cut;
  cut.mutable_cut()->set_epoch(1);
  cut.mutable_cut()->set_cut(9);
  coordinator.Send(cut);
  const v1::WorkerMessage answer =
      coordinator.Await([](const v1::WorkerMessage& m) { return m.has_cut_answer(); });
  CHECK(answer.cut_answer().cut() == 9);

  v1::CoordinatorMessage shutdown;
  shutdown.mutable_shutdown()->set_reason("the test is over");
  coordinator.Send(shutdown);
  worker.thread.join();
  CHECK(worker.status.ok());
}

TEST_CASE("a window may be larger than gRPC's default of 4 MB") {
  FakeCoordinator coordinator;
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  v1::CoordinatorMessage message = LoadAndSave(Job(), "", 0, 1);
  v1::Segment& segment = *message.mutable_window()->add_microbatches()->add_segments();
  segment.mutable_labels()->Resize(1'000'000, -100);
  REQUIRE(message.ByteSizeLong() > 9'000'000);
  coordinator.Send(message);
  coordinator.AwaitReport(v1::Report::kSlotFreed);
}

TEST_CASE("a broken stream loses no report") {
  FakeCoordinator coordinator;
  coordinator.adopt = true;
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);  // not acknowledged
  const int port = coordinator.port();
  coordinator.StopServer();
  std::this_thread::sleep_for(100ms);
  coordinator.Start(port);
  const v1::Hello hello = coordinator.AwaitHello();
  CHECK(hello.group() == "g");
  CHECK(hello.epoch() == 1);
  CHECK(hello.last_report() == 1);
  CHECK(coordinator.AwaitReport(v1::Report::kGroupFormed).number() == 1);
  v1::CoordinatorMessage acknowledge;
  acknowledge.mutable_acknowledge()->set_epoch(1);
  acknowledge.mutable_acknowledge()->set_number(1);
  coordinator.Send(acknowledge);
  for (int i = 0; i < 500 && worker.reports.kept() > 0; ++i) std::this_thread::sleep_for(10ms);
  CHECK(worker.reports.kept() == 0);
}

TEST_CASE("what a new coordinator does not want is given up") {
  FakeCoordinator coordinator;
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  coordinator.Break();
  CHECK(coordinator.AwaitHello().epoch() == 1);
  coordinator.Await(
      [](const v1::WorkerMessage& m) { return m.has_heartbeat() && m.heartbeat().epoch() == 0; });
  coordinator.Send(FormOrder(2));
  CHECK(coordinator.AwaitReport(v1::Report::kGroupFormed).epoch() == 2);
}

TEST_CASE("a group is kept for one lease without a coordinator") {
  FakeCoordinator coordinator;
  coordinator.lease_ms = 200;
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  coordinator.StopServer();
  CHECK(worker.executor.held().epoch == 1);
  for (int i = 0; i < 500 && worker.executor.held().epoch != 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(worker.executor.held().epoch == 0);
}

TEST_CASE("a worker that is refused ends with the reason") {
  FakeCoordinator coordinator;
  coordinator.Refuse({grpc::StatusCode::FAILED_PRECONDITION, "protocol version 2 is wanted"});
  Worker worker(coordinator.address());
  worker.thread.join();
  CHECK(worker.status.message() == "protocol version 2 is wanted");
}

TEST_CASE("stop ends a worker whose coordinator is not there") {
  Worker worker("127.0.0.1:1");
  std::this_thread::sleep_for(50ms);
  worker.control.Stop();
  worker.thread.join();
  CHECK(worker.status.ok());
}

}  // namespace
}  // namespace lorad::worker
