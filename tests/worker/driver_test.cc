// A worker with its threads and its stream against a coordinator that does as it is told: orders,
// reports, broken streams, bulk transfers, ends.
#include "worker/driver.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "kernels/cpu/cpu_backend.h"
#include "tests/worker/dead_line.h"
#include "tests/worker/fake_coordinator.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "worker/engine/engine.h"
#include "worker/host/process.h"
#include "worker/link/grpc_bulk.h"
#include "worker/link/grpc_link.h"
#include "worker/transport/sockets.h"

namespace lorad::worker {
namespace {

// A worker's parts as main.cc puts them together.
struct Worker {
  explicit Worker(const std::string& coordinator)
      : backend(kernels::MakeCpuBackend(1)),
        bulk(coordinator),
        link(coordinator),
        driver(
            {.hello = Hello(*backend), .pause_first_ms = 10, .pause_last_ms = 50},
            MakeEngineMaker(backend.get(), {.numerics_id = NumericsId(*backend)}, SteadyClock()),
            [] { return SocketsListener::Open("127.0.0.1"); }, &link, &bulk, SteadyClock()) {}
  static v1::Hello Hello(const kernels::Backend& backend) {
    v1::Hello hello;
    hello.set_protocol_version(kProtocolVersion);
    hello.set_worker("w");
    hello.set_numerics_id(NumericsId(backend));
    return hello;
  }

  std::unique_ptr<kernels::Backend> backend;
  GrpcBulk bulk;
  GrpcLink link;
  Driver driver;
};

v1::CoordinatorMessage FormOrder(int64_t epoch) {
  v1::CoordinatorMessage message;
  v1::FormGroup& order = *message.mutable_form_group();
  order.set_group("g");
  order.set_epoch(epoch);
  order.set_model_path(MakeRandomModel(std::filesystem::temp_directory_path() / "driver_model"));
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
  CHECK(worker.driver.AwaitEnd().ok());
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
  for (int i = 0; i < 500 && worker.driver.reports_kept() > 0; ++i)
    std::this_thread::sleep_for(10ms);
  CHECK(worker.driver.reports_kept() == 0);
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
  coordinator.lease_ms = 5'000;  // far longer than the server takes to stop
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  coordinator.StopServer();
  CHECK(worker.driver.held().epoch == 1);
  for (int i = 0; i < 3000 && worker.driver.held().epoch != 0; ++i) {
    std::this_thread::sleep_for(10ms);
  }
  CHECK(worker.driver.held().epoch == 0);
}

TEST_CASE("a coordinator behind a dead line is noticed") {
  FakeCoordinator coordinator;
  coordinator.lease_ms = 200;
  DeadLine line(coordinator.port());
  Worker worker(line.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  line.Die();
  // The question after 10 s, the end 90 s later; much more time for a loaded machine.
  for (int i = 0; i < 2000 && worker.driver.held().epoch != 0; ++i) {
    std::this_thread::sleep_for(100ms);
  }
  CHECK(worker.driver.held().epoch == 0);
}

TEST_CASE("a worker that is refused ends with the reason") {
  FakeCoordinator coordinator;
  coordinator.Refuse({grpc::StatusCode::FAILED_PRECONDITION, "protocol version 2 is wanted"});
  Worker worker(coordinator.address());
  CHECK(worker.driver.AwaitEnd().message() == "protocol version 2 is wanted");
}

TEST_CASE("a name that is taken is asked for again until it is free") {
  for (const grpc::StatusCode code :
       {grpc::StatusCode::UNAVAILABLE, grpc::StatusCode::ALREADY_EXISTS}) {
    FakeCoordinator coordinator;
    coordinator.Refuse({code, "WORKER_NAME_TAKEN"});
    Worker worker(coordinator.address());
    std::this_thread::sleep_for(100ms);
    coordinator.Refuse(grpc::Status::OK);
    CHECK(coordinator.AwaitHello().worker() == "w");
  }
}

TEST_CASE("calls that nobody answers do not keep a group, nor the worker") {
  struct Case {
    const char* unanswered;
    std::chrono::seconds limit;  // of such a call
  };
  const auto now = [] { return std::chrono::steady_clock::now(); };
  for (const auto& [unanswered, limit] : {Case{"upload", 15s}, Case{"shard", 10s}}) {
    INFO(unanswered);
    const auto waited = limit - 1s;  // who waits for its end: some of it has passed by then
    FakeCoordinator coordinator;
    coordinator.unanswered = unanswered;
    auto worker = std::make_unique<Worker>(coordinator.address());
    coordinator.AwaitHello();
    for (int64_t epoch = 1; epoch <= 2; ++epoch) {
      const auto ordered = now();
      coordinator.Send(FormOrder(epoch));
      CHECK(coordinator.AwaitReport(v1::Report::kGroupFormed).epoch() == epoch);
      CHECK(now() - ordered < waited);
      v1::CoordinatorMessage order =
          LoadAndSave(Job(), unanswered == std::string("shard") ? "shard" : "", 0, 1);
      order.mutable_window()->set_epoch(epoch);
      const int calls = coordinator.calls;
      coordinator.Send(order);
      for (int i = 0; i < 1000 && coordinator.calls == calls; ++i) {
        std::this_thread::sleep_for(10ms);
      }
      REQUIRE(coordinator.calls > calls);
    }
    const auto ends = now();
    worker.reset();
    CHECK(now() - ends < waited);
  }
}

TEST_CASE("what a slot cannot start from has its reason") {
  struct Case {
    grpc::StatusCode code;
    const char* reason;
  };
  const Case cases[] = {
      {grpc::StatusCode::DATA_LOSS, "CHECKPOINT_CORRUPT"},
      {grpc::StatusCode::NOT_FOUND, "SLOT_LOAD"},
      {grpc::StatusCode::RESOURCE_EXHAUSTED, "CONTENT_UNAVAILABLE"},
  };
  FakeCoordinator coordinator;
  Worker worker(coordinator.address());
  coordinator.AwaitHello();
  coordinator.Send(FormOrder(1));
  coordinator.AwaitReport(v1::Report::kGroupFormed);
  int64_t window = 0;
  for (const Case& c : cases) {
    INFO(c.reason);
    coordinator.fetch_answer = {c.code, "why"};
    coordinator.Send(LoadAndSave(Job(), "shard", 0, ++window));
    const v1::SlotFailed failed = coordinator.AwaitReport(v1::Report::kSlotFailed).slot_failed();
    CHECK(failed.reason() == c.reason);
    CHECK_THAT(failed.message(), Catch::Contains("why"));
    coordinator.AwaitReport(v1::Report::kWindowDone);
  }
}

TEST_CASE("stop ends a worker whose coordinator is not there") {
  Worker worker("127.0.0.1:1");
  std::this_thread::sleep_for(50ms);
  worker.driver.Stop();
  CHECK(worker.driver.AwaitEnd().ok());
}

}  // namespace
}  // namespace lorad::worker
