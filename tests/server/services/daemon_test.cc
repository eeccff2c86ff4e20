// The whole daemon in this process, with a worker played by a script; and its program as users
// start it.
#include <fcntl.h>
#include <grpcpp/grpcpp.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "absl/time/clock.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/datasets.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "lorad/v1/models.grpc.pb.h"
#include "lorad/worker/v1/worker.grpc.pb.h"
#include "server/errors/errors.h"
#include "server/serve.h"
#include "tests/server/services/daemon_fixture.h"

namespace lorad::server {
namespace {

namespace wire = worker::v1;

TEST_CASE_METHOD(DaemonFixture, "a job from its creation to its deletion, without a worker") {
  const std::string name = Create();
  CHECK(Becomes(name, v1::Job::QUEUED));
  CHECK(!Get(name).queue().why().empty());
  CHECK(Count("") == 1);
  CHECK(Count("labels.team = x AND state = QUEUED") == 1);
  CHECK(Count("labels.team != x") == 0);

  v1::DeleteJobRequest remove;
  remove.set_name(name);
  google::protobuf::Empty empty;
  Context live;
  CHECK(Summary(jobs->DeleteJob(&live, remove, &empty)) == "JOB_LIVE");
  v1::DeleteDatasetRequest remove_dataset;
  remove_dataset.set_name("d");
  Context used;
  CHECK(Summary(datasets->DeleteDataset(&used, remove_dataset, &empty)) == "IN_USE");

  v1::CancelJobRequest cancel;
  cancel.set_name(name);
  v1::Job job;
  for (int i = 0; i < 2; ++i) {  // as often as one likes
    Context context;
    CHECK(jobs->CancelJob(&context, cancel, &job).ok());
  }
  CHECK(Becomes(name, v1::Job::CANCELLED));
  Context context;
  CHECK(jobs->DeleteJob(&context, remove, &empty).ok());
  CHECK(Count("") == 0);
  Context gone;
  CHECK(Summary(jobs->DeleteJob(&gone, remove, &empty)) == "JOB_NOT_FOUND");
}

TEST_CASE_METHOD(DaemonFixture, "the same request_id twice, with the same and with other content") {
  v1::CreateJobRequest request = Request();
  request.set_request_id("r");
  v1::Job first, second;
  Context contexts[3];
  REQUIRE(jobs->CreateJob(&contexts[0], request, &first).ok());
  REQUIRE(jobs->CreateJob(&contexts[1], request, &second).ok());
  CHECK(first.name() == second.name());
  request.mutable_job()->set_priority(1);
  CHECK(Summary(jobs->CreateJob(&contexts[2], request, &second)) == "REQUEST_ID_REUSED");
  CHECK(Count("") == 1);
}

TEST_CASE_METHOD(DaemonFixture, "what was acknowledged is there after an end without a stop") {
  v1::CreateJobRequest request = Request();
  request.set_request_id("r");
  v1::Job job, again;
  Context context;
  REQUIRE(jobs->CreateJob(&context, request, &job).ok());
  daemon.reset();
  Start();
  CHECK(Becomes(job.name(), v1::Job::QUEUED));
  Context second;
  REQUIRE(jobs->CreateJob(&second, request, &again).ok());
  CHECK(again.name() == job.name());
}

TEST_CASE_METHOD(DaemonFixture,
                 "validate_only answers when the rows are checked, and stores nothing") {
  v1::CreateJobRequest request = Request();
  request.set_validate_only(true);
  v1::Job job;
  Context context;
  const grpc::Status status = jobs->CreateJob(&context, request, &job);
  INFO(status.error_message());
  REQUIRE(status.ok());
  CHECK(job.total_steps() == 4);
  CHECK(Count("") == 0);
}

TEST_CASE_METHOD(DaemonFixture, "a scripted worker forms a group, gets a window, and is lost") {
  Context watch_context;
  auto watch = jobs->WatchJobs(&watch_context, {});
  watch->WaitForInitialMetadata();
  const std::string name = Create();
  auto stub = wire::Coordinator::NewStub(channel);
  Context context;
  auto stream = stub->Control(&context);
  wire::WorkerMessage said;
  said.mutable_hello()->set_protocol_version(1);
  said.mutable_hello()->set_worker("w");
  said.mutable_hello()->set_device("cpu");
  said.mutable_hello()->set_memory_bytes(int64_t{1} << 30);
  said.mutable_hello()->set_threads(1);
  REQUIRE(stream->Write(said));
  wire::CoordinatorMessage order;
  REQUIRE(stream->Read(&order));
  CHECK(order.has_welcome());
  REQUIRE(stream->Read(&order));
  REQUIRE(order.has_form_group());
  CHECK(Becomes(name, v1::Job::PREPARING));
  const int64_t epoch = order.form_group().epoch();
  wire::Report& report = *said.mutable_report();
  report.set_epoch(epoch);
  report.set_number(1);
  report.mutable_group_formed()->set_reserved_bytes(1 << 20);
  REQUIRE(stream->Write(said));
  do {
    REQUIRE(stream->Read(&order));
  } while (!order.has_window());
  CHECK(order.window().epoch() == epoch);
  REQUIRE(order.window().operations_size() > 0);
  CHECK(order.window().operations(0).kind() == wire::Operation::LOAD_SLOT);
  CHECK(order.window().operations(0).job() == name);

  Context workers_context;
  v1::ListWorkersResponse workers;
  REQUIRE(cluster->ListWorkers(&workers_context, {}, &workers).ok());
  REQUIRE(workers.workers_size() == 1);
  CHECK(workers.workers(0).name() == "w");

  context.TryCancel();  // the worker dies
  stream->Finish();
  CHECK(Becomes(name, v1::Job::QUEUED));
  CHECK(Get(name).attempts() >= 1);

  // The watch saw it all, in order, each once.
  int64_t revision = 0;
  std::vector<v1::Job::State> states;
  v1::WatchJobsResponse change;
  while (states.empty() || states.back() != v1::Job::QUEUED || change.job().attempts() == 0) {
    REQUIRE(watch->Read(&change));
    CHECK(change.revision() > revision);
    revision = change.revision();
    if (states.empty() || states.back() != change.job().state()) {
      states.push_back(change.job().state());
    }
  }
  CHECK(std::find(states.begin(), states.end(), v1::Job::PREPARING) != states.end());
  watch_context.TryCancel();
}

TEST_CASE_METHOD(DaemonFixture, "a clean stop with a job in the queue and a watch open") {
  Create();
  Context context;
  auto watch = jobs->WatchJobs(&context, {});
  v1::WatchJobsResponse change;
  REQUIRE(watch->Read(&change));
  const absl::Time began = absl::Now();
  daemon->Stop(absl::Now() + absl::Seconds(5));
  CHECK(absl::Now() - began < absl::Seconds(4));
  while (watch->Read(&change)) {
  }
  CHECK(ErrorInfoOf(watch->Finish()).reason() == "SHUTTING_DOWN");
}

TEST_CASE("what the command line says of sizes") {
  CHECK(ParseBytes("1000").value() == 1000);
  CHECK(ParseBytes("2KiB").value() == 2048);
  CHECK(ParseBytes("8GiB").value() == int64_t{8} << 30);
  for (const char* wrong : {"", "GiB", "0", "-1", "1GB", "8 GiB", "9999999TiB"}) {
    CHECK(Reason(ParseBytes(wrong).status()) == "INVALID_BYTES");
  }
}

// The program, with its output in files.
struct Program {
  Program(const storage::TempDirectory& directory, std::vector<std::string> arguments)
      : out(directory / "out"), err(directory / "err") {
    arguments.insert(arguments.begin(), "server/lorad");
    std::vector<char*> argv;
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    pid = fork();
    if (pid == 0) {
      dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 1);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600), 2);
      execv(argv[0], argv.data());
      _exit(126);
    }
  }
  int Wait() const {
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  }
  static std::string Text(const std::string& path) {
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  std::string out, err;
  pid_t pid;
};

TEST_CASE("the program says where it listens, and stops cleanly on both signals") {
  for (const int signal_number : {SIGTERM, SIGINT}) {
    storage::TempDirectory directory;
    Program program(directory, {"serve", "--data-dir", directory / "data", "--listen",
                                "127.0.0.1:0", "--workers", "none", "--log-format", "json"});
    REQUIRE(Eventually([&] { return Program::Text(program.out).ends_with("\n"); }));
    const std::string said = Program::Text(program.out);
    CHECK_THAT(said, Catch::Matches("lorad listening on 127\\.0\\.0\\.1:[1-9][0-9]*\n"));
    kill(program.pid, signal_number);
    CHECK(program.Wait() == 0);
    CHECK(Program::Text(program.out) == said);
    CHECK_THAT(Program::Text(program.err), Catch::StartsWith("{\"time\":\"20"));
    CHECK_THAT(Program::Text(program.err), Catch::EndsWith("\"message\":\"stopped\"}\n"));
  }
}

TEST_CASE("the program serves a thousand watches on 32 threads") {
  storage::TempDirectory directory;
  Program program(directory, {"serve", "--data-dir", directory / "data", "--listen", "127.0.0.1:0",
                              "--workers", "none"});
  REQUIRE(Eventually([&] { return Program::Text(program.out).ends_with("\n"); }));
  std::string address = Program::Text(program.out).substr(sizeof("lorad listening on ") - 1);
  address.pop_back();
  std::vector<std::unique_ptr<v1::Jobs::Stub>> stubs;
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchJobsResponse>>> readers;
  for (int i = 0; i < 1000; ++i) {
    if (i % 250 == 0) {
      grpc::ChannelArguments arguments;
      arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
      stubs.push_back(v1::Jobs::NewStub(
          grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments)));
    }
    contexts.push_back(std::make_unique<Context>());
    readers.push_back(stubs.back()->WatchJobs(contexts.back().get(), {}));
  }
  for (const auto& reader : readers) reader->WaitForInitialMetadata();
  const std::filesystem::directory_iterator threads("/proc/" + std::to_string(program.pid) +
                                                    "/task");
  CHECK(std::distance(threads, std::filesystem::directory_iterator()) <= 32);
  kill(program.pid, SIGTERM);
  CHECK(program.Wait() == 0);
  for (const auto& reader : readers) {
    v1::WatchJobsResponse change;
    CHECK(!reader->Read(&change));
    CHECK(ErrorInfoOf(reader->Finish()).reason() == "SHUTTING_DOWN");
  }
}

TEST_CASE("the program says in one line why it cannot serve") {
  storage::TempDirectory directory;
  directory.Write("file", "");
  const std::string data = directory / "data";
  const std::tuple<std::vector<std::string>, int, std::string> cases[] = {
      {{"serve"}, 2, "error: USAGE: --data-dir is required; see `lorad serve --help`\n"},
      {{"serve", "--data-dir", data, "--workers", "x"}, 2, "error: INVALID_WORKERS: "},
      {{"serve", "--data-dir", data, "--worker-memory", "1GB"}, 2, "error: INVALID_BYTES: "},
      {{"serve", "--data-dir", data, "--listen", "0.0.0.0:0"}, 1, "error: NOT_LOOPBACK: "},
      {{"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--model-root", "/no"},
       1,
       "error: MODEL_ROOT_MISSING: "},
      {{"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--workers", "none", "--allow-user",
        "no-such-user"},
       1,
       "error: NO_SUCH_USER: "},
      {{"serve", "--data-dir", data, "--listen", "127.0.0.1:0", "--worker-binary", "/no"},
       1,
       "error: WORKER_BINARY_MISSING: "},
      {{"serve", "--data-dir", directory / "file", "--listen", "127.0.0.1:0", "--workers", "none"},
       1,
       "error: DATA_DIR_INVALID: "},
  };
  for (const auto& [arguments, exit_code, begins] : cases) {
    Program program(directory, arguments);
    CHECK(program.Wait() == exit_code);
    CHECK_THAT(Program::Text(program.err), Catch::StartsWith(begins));
    CHECK(Program::Text(program.out).empty());
  }
}

}  // namespace
}  // namespace lorad::server
