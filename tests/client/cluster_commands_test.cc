// The commands that show the cluster, and change its workers and quotas, against services that a
// script plays.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "client/text/stages.h"
#include "tests/client/fakes.h"
#include "tests/client/terminal.h"
#include "tests/storage/temp_directory.h"

namespace lorad::client {
namespace {

TEST_CASE_METHOD(Fixture, "top is one table where stdout is no terminal") {
  jobs.job.set_state(Job::QUEUED);
  jobs.job.mutable_queue()->set_place(1);
  jobs.job.mutable_queue()->set_why("waits for a worker");
  cluster.looks = {Standing(Worker::DRAINING)};
  cluster.jobs = 2;
  Ran ran = Run("top");
  CHECK(ran.reason == "OK");
  CHECK(Has(ran.out, "1 worker, 0 jobs run, 1 waits, 0 paused; 0 tokens/s\n"));
  CHECK(Has(ran.out, "drained: a new disk\n"));
  CHECK(Has(ran.out, "place 1: waits for a worker\n"));
  CHECK(jobs.filter == "state != SUCCEEDED AND state != FAILED AND state != CANCELLED");
  std::vector<std::string> dumb;  // where it is one that shows no more than lines, and a live table
  {                               // would not end
    const Terminal terminal(200);
    const char* const before = std::getenv("TERM");
    const std::string kept = before == nullptr ? "" : before;
    for (const char* kind : {"dumb", ""}) {
      setenv("TERM", kind, 1);
      dumb.push_back(Run("top").out);
    }
    setenv("TERM", kept.c_str(), 1);
  }
  for (const std::string& out : dumb) {
    CHECK(out.starts_with("1 worker, 0 jobs run, 1 waits, 0 paused; 0 tokens/s\n\nWORKER"));
    CHECK_FALSE(Has(out, "\x1b"));
  }
  ran = Run("top", true);
  CHECK(ran.out.starts_with("{\"workers\": [{\"name\": \"w\""));
  CHECK(Has(ran.out, "], \"jobs\": [{\"name\": \"job-a\""));
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 1);
}

TEST_CASE_METHOD(Fixture, "a worker is drained, and waited for until it is empty") {
  cluster.looks = {Standing(Worker::DRAINING)};
  CHECK(Run("worker drain w --reason 'a new disk'").err == "w: DRAINING\n");
  CHECK(cluster.reason == "a new disk");
  cluster.looks = {Standing(Worker::DRAINING), Standing(Worker::DRAINING),
                   Standing(Worker::DRAINING), Standing(Worker::DRAINED)};
  cluster.jobs = 2;
  const Ran ran = Run("worker drain w --reason r --wait");
  CHECK(ran.reason == "OK");
  CHECK(ran.err ==
        "lora: w is DRAINING, 2 jobs are left on it\nlora: w is DRAINING, 1 job is left on it\n"
        "lora: w is DRAINING, 0 jobs are left on it\nw: DRAINED\n");
  const Ran json = Run("worker drain w --reason r --wait", true);
  CHECK(Has(json.out, R"("state": "DRAINED")"));
  CHECK(std::count(json.out.begin(), json.out.end(), '\n') == 1);
  CHECK(Run("worker drain w").reason == "USAGE");
  CHECK(Run("worker drain nobody --reason r").reason == "WORKER_NOT_FOUND");
  CHECK(Run("worker undrain w").err == "w: IDLE\n");
}

TEST_CASE_METHOD(Fixture, "a wait for a worker outlives its daemon") {
  cluster.looks = {Standing(Worker::DRAINING), Standing(Worker::DRAINED)};
  cluster.away = 2;
  const Ran ran = Run("worker drain w --reason r --wait");
  CHECK(ran.reason == "OK");
  CHECK(Has(ran.err, "; trying again\n"));
  CHECK(Has(ran.err, "w: DRAINED\n"));
  CHECK(cluster.away == 0);
}

TEST_CASE_METHOD(Fixture, "a wait for a worker that goes, or is undrained, ends with that") {
  // One that is awaited may come back.
  cluster.looks = {Standing(Worker::DRAINING), Standing(Worker::AWAITED),
                   Standing(Worker::DRAINED)};
  CHECK(Run("worker drain w --reason r --wait").reason == "OK");
  cluster.looks = {Standing(Worker::DRAINING), Standing(Worker::AWAITED), Standing(Worker::LOST)};
  CHECK(Run("worker drain w --reason r --wait").reason == "WORKER_LOST");
  Worker undrained = Standing(Worker::BUSY);
  undrained.set_drained(false);
  cluster.looks = {Standing(Worker::DRAINING), undrained};
  CHECK(Run("worker drain w --reason r --wait").reason == "UNDRAINED");
}

TEST_CASE_METHOD(Fixture, "the list of workers says which are drained, and why") {
  cluster.looks = {Standing(Worker::DRAINED)};
  const Ran ran = Run("worker ls");
  CHECK(Has(ran.out, "w       DRAINED"));
  CHECK(Has(ran.out, "worker 'w' is drained since "));
  CHECK(Has(ran.out, ": a new disk\n"));
  CHECK(Has(Run("worker ls", true).out, R"("drain_reason": "a new disk")"));
  CHECK_FALSE(Has(ran.out, "speed"));
  cluster.looks[0].set_relative_speed(0.4);
  CHECK(Has(Run("worker ls").out, "\nworker 'w' has 0.4 x the speed of its kind\n"));
  CHECK(Has(Run("worker ls", true).out, R"("relative_speed": 0.4)"));
  cluster.looks = {Standing(Worker::AWAITED)};
  cluster.looks[0].set_relative_speed(1);
  CHECK_FALSE(Has(Run("worker ls").out, "speed"));
  CHECK(Has(Run("worker ls").out, "w       AWAITED"));
  CHECK(Has(Run("worker ls", true).out, R"("state": "AWAITED")"));
}

TEST_CASE_METHOD(Fixture, "workers and groups fit the terminal, the most asked for first") {
  Worker worker = Standing(Worker::BUSY);
  worker.set_name("gpu-node-17-1");
  worker.set_host("gpu-node-17.example.org");
  worker.set_device("cuda:1");
  worker.set_device_name("NVIDIA H100 80GB HBM3");
  worker.set_memory_bytes(80'000'000'000);
  worker.set_transport("nvlink");
  worker.set_group("group-123");
  worker.mutable_connect_time()->set_seconds(1'800'000'000);
  cluster.looks = {Standing(Worker::IDLE)};
  cluster.beside = {worker};
  v1::GroupStage stage;
  stage.set_worker("gpu-node-17-1");
  stage.set_host("gpu-node-17.example.org");
  stage.set_transport("nvlink");
  stage.set_first_block(0);
  stage.set_end_block(60);
  cluster.stages = {stage, stage};
  cluster.stages[1].set_first_block(3);
  cluster.stages[1].set_end_block(4);
  cluster.jobs = 2;
  const std::string all = Run("worker ls").out;
  CHECK(Has(all, "RESTARTS"));
  for (const unsigned short columns : {60, 80, 120}) {
    INFO(columns);
    const Terminal terminal(columns);
    const std::string workers = Run("worker ls").out;
    CHECK(WiderThan(columns, workers.substr(0, workers.find("\n\n"))).empty());
    CHECK(Has(workers, "gpu-node-17-1  BUSY"));
    CHECK(Has(workers, "group-123"));
    CHECK(workers.substr(0, workers.find('\n')) != all.substr(0, all.find('\n')));
    const std::string shown = Run("cluster").out;
    CHECK(WiderThan(columns, shown).empty());
    CHECK(Has(shown, "0 to 29"));
    CHECK(Has(shown, "1 (MLP)"));
  }
}

TEST_CASE("blocks are told as layers, and where one is cut") {
  CHECK(LayersText(0, 60) == "0 to 29");
  CHECK(LayersText(2, 4) == "1");
  CHECK(LayersText(2, 3) == "1 (attention)");
  CHECK(LayersText(3, 4) == "1 (MLP)");
  CHECK(LayersText(3, 13) == "1 (MLP) to 6 (attention)");
}

void Add(v1::Trace::Bar::Kind kind, int stage, double begin_ms, double end_ms,
         google::protobuf::RepeatedPtrField<v1::Trace::Bar>* bars) {
  v1::Trace::Bar& bar = *bars->Add();
  bar.set_kind(kind);
  bar.set_stage(stage);
  bar.set_microbatch(7);
  bar.set_begin_ms(begin_ms);
  bar.set_end_ms(end_ms);
}

// Microbatch 7 forward on two stages, as measured and as simulated.
v1::Trace TwoStages() {
  v1::Trace trace;
  trace.set_group("group-1");
  trace.set_bubble_ratio(0.25);
  trace.set_simulated_bubble_ratio(0.125);
  for (const char* worker : {"w0", "w1"}) {
    trace.add_stages()->set_worker(worker);
    trace.mutable_stages()->rbegin()->set_busy(0.75);
  }
  v1::Trace::Microbatch& microbatch = *trace.add_microbatches();
  microbatch.set_number(7);
  microbatch.set_tokens(99);
  microbatch.add_jobs("job-a");
  for (auto* bars : {trace.mutable_bars(), trace.mutable_simulated_bars()}) {
    Add(v1::Trace::Bar::FORWARD, 0, 0, 1, bars);
    Add(v1::Trace::Bar::ACTIVATIONS, 1, 1, 1.5, bars);
    Add(v1::Trace::Bar::FORWARD, 1, 1.5, 3, bars);
  }
  return trace;
}

TEST_CASE_METHOD(Fixture, "a trace is shown, and written as a Chrome trace") {
  cluster.trace = TwoStages();
  const std::string file = std::string(std::getenv("TEST_TMPDIR")) + "/trace.json";
  const Ran ran = Run("trace job-a --microbatches 5 -o " + file);
  CHECK(ran.reason == "OK");
  CHECK(cluster.traced.microbatches() == 5);
  CHECK(Has(ran.out, "1 microbatches in 3.0 ms, bubble 25.0 %"));
  CHECK(Has(ran.out, "75.0 %"));
  CHECK(Has(ran.err, "trace.json is written"));
  CHECK(Has(Run("trace job-a", true).out, R"("simulated_bubble_ratio": 0.125)"));

  const auto chrome = nlohmann::json::parse(std::ifstream(file));
  std::vector<std::string> bars;
  for (const auto& event : chrome["traceEvents"]) {
    if (event["ph"] != "X") continue;
    CHECK(event["args"]["jobs"][0] == "job-a");
    bars.push_back(event["name"].get<std::string>() + " " + event["pid"].dump() + "/" +
                   event["tid"].dump() + " " + event["ts"].dump() + "+" + event["dur"].dump());
  }
  // A process a stage, measured before simulated; tracks: compute, send, receive.
  CHECK(bars == std::vector<std::string>{"F7 0/0 0.0+1000.0", "f7 1/2 1000.0+500.0",
                                         "f7 0/1 1000.0+500.0", "F7 1/0 1500.0+1500.0",
                                         "F7 2/0 0.0+1000.0", "f7 3/2 1000.0+500.0",
                                         "f7 2/1 1000.0+500.0", "F7 3/0 1500.0+1500.0"});
}

TEST_CASE_METHOD(Fixture, "a trace that cannot be had, or written, is an error") {
  cluster.trace = TwoStages();
  CHECK(Run("trace job-none").reason == "JOB_NOT_FOUND");
  CHECK(Run("trace").reason == "USAGE");
  CHECK(Run("trace job-a -o EMPTY").reason == "USAGE");
  const Ran nowhere = Run("trace job-a -o /no/such/folder/trace.json");
  CHECK(nowhere.reason == "FILE_UNWRITABLE");
  CHECK(Has(nowhere.error, "/no/such/folder/trace.json cannot be written: No such file"));
  const storage::TempDirectory folder;
  std::filesystem::create_directories(folder / "is-there");
  const Ran taken = Run("trace job-a -o " + (folder / "is-there"));
  CHECK(Has(taken.error, "is-there cannot be written: Is a directory"));
  CHECK_FALSE(std::filesystem::exists(folder / "is-there.partial"));
}

TEST_CASE_METHOD(Fixture, "the cluster says what is the matter with it") {
  CHECK_FALSE(Has(Run("cluster").out, "warning"));
  cluster.warning = "the disk has no room";
  CHECK(Has(Run("cluster").out, "warning  the disk has no room\n"));
}

TEST_CASE_METHOD(Fixture, "quotas are set as a whole, listed with their use, and deleted") {
  CHECK(Run("quota set team=math --running 4 --stored 10GiB").reason == "OK");
  CHECK(cluster.set.running_jobs() == 4);
  CHECK_FALSE(cluster.set.has_queued_jobs());
  CHECK(cluster.set.stored_bytes() == int64_t{10} << 30);
  CHECK(Run("quota set team=math --queued 9223372036854775807").reason == "OK");
  CHECK(cluster.set.queued_jobs() == 9223372036854775807);
  CHECK(Run("quota set 'team=*' --queued 7 --stored 1000", true).reason == "OK");
  CHECK(cluster.set.label() == "team=*");
  CHECK(cluster.set.stored_bytes() == 1000);
  for (const char* wrong : {"quota set", "quota set team=math --stored much", "quota set a=b -n 1",
                            "quota rm", "quota set team=math --running some"}) {
    INFO(wrong);
    CHECK(Run(wrong).reason == "USAGE");
  }
  const auto beyond = [&](const std::string& option, const std::string& got) {
    const Ran ran = Run("quota set team=math " + option);
    INFO(ran.error);
    CHECK(ran.reason == "USAGE");
    CHECK(ran.error == option.substr(0, option.find(' ')) +
                           ": must be a whole number from 0 to 9223372036854775807, got '" + got +
                           "'; without the option there is no limit");
  };
  beyond("--running -1", "-1");
  beyond("--running 99999999999999999999", "99999999999999999999");
  beyond("--running EMPTY", "");
  beyond("--queued 9223372036854775808", "9223372036854775808");
  beyond("--stored 18446744073709551615", "18446744073709551615");
  beyond("--stored 8EiB", "9223372036854775808");
  CHECK(Run("quota set team=math --stored=-1").error == "--stored: must not be negative, got '-1'");
  v1::Quota quota = cluster.set;
  v1::Quota::Use& use = *quota.add_use();
  use.set_label("team=art");
  use.set_running_jobs(3);
  use.set_queued_jobs(2);
  use.set_stored_bytes(512);
  cluster.quotas = {quota};
  quota.clear_use();
  quota.set_label("user=*");
  cluster.quotas.push_back(quota);
  const Ran ran = Run("quota ls");
  CHECK(ran.out ==
        "QUOTA   OF        RUNNING  QUEUED        STORED\n"
        "team=*  team=art        3     2/7  512 B/1000 B\n"
        "user=*  -               0     0/7    0 B/1000 B\n");
  const Ran json = Run("quota ls", true);
  CHECK(std::count(json.out.begin(), json.out.end(), '\n') == 2);
  CHECK(Run("quota rm team=math").reason == "OK");
  CHECK(cluster.deleted == "team=math");
}

}  // namespace
}  // namespace lorad::client
