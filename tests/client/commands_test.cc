// The commands that change jobs, workers and quotas, against services that a script plays.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "lorad/v1/cluster.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "tests/client/run_command.h"

namespace lorad::client {
namespace {

using v1::Job;
using v1::Worker;
using GrpcContext = grpc::ServerContext;

grpc::Status Refused(grpc::StatusCode code, const std::string& reason) {
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  google::rpc::Status status;
  status.set_code(code);
  status.add_details()->PackFrom(info);
  return {code, "as the script says", status.SerializeAsString()};
}

// One job, whose etag another client changes before the first `races` updates.
struct FakeJobs final : v1::Jobs::Service {
  Job job;
  int races = 0;
  std::vector<v1::UpdateJobRequest> updates;
  std::vector<std::string> paused;
  std::deque<Job> watched;
  std::string filter;
  std::vector<Job> named;  // what is asked for by display name
  std::string absent;      // a job that is not there

  FakeJobs() {
    job.set_name("job-a");
    job.set_etag("1");
    (*job.mutable_labels())["team"] = "math";
  }
  grpc::Status GetJob(GrpcContext*, const v1::GetJobRequest* request, Job* response) override {
    if (request->name() == absent) return Refused(grpc::NOT_FOUND, "JOB_NOT_FOUND");
    *response = job;
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    filter = request->filter();
    if (filter.starts_with("display_name")) {
      for (const Job& one : named) {
        if (filter != "display_name = \"" + one.display_name() + "\"") continue;
        *response->add_jobs() = one;
      }
      return grpc::Status::OK;
    }
    *response->add_jobs() = job;
    return grpc::Status::OK;
  }
  grpc::Status UpdateJob(GrpcContext*, const v1::UpdateJobRequest* request,
                         Job* response) override {
    updates.push_back(*request);
    if (races > 0) {
      --races;
      (*job.mutable_labels())["raced"] = std::to_string(races);
      job.set_etag(job.etag() + "1");
    }
    if (!request->job().etag().empty() && request->job().etag() != job.etag()) {
      return Refused(grpc::ABORTED, "ETAG_MISMATCH");
    }
    for (const std::string& path : request->update_mask().paths()) {
      if (path == "labels") *job.mutable_labels() = request->job().labels();
      if (path == "priority") job.set_priority(request->job().priority());
    }
    *response = job;
    return grpc::Status::OK;
  }
  grpc::Status PauseJob(GrpcContext*, const v1::PauseJobRequest* request, Job* response) override {
    if (request->name() == "job-done" || request->name() == "job-ended")
      return Refused(grpc::FAILED_PRECONDITION, "JOB_ENDED");
    paused.push_back(request->name());
    response->set_name(request->name());
    response->set_state(Job::PAUSING);
    return grpc::Status::OK;
  }
  grpc::Status FinishJob(GrpcContext*, const v1::FinishJobRequest* request,
                         Job* response) override {
    if (request->name() == "job-done") {
      return Refused(grpc::FAILED_PRECONDITION, "NOTHING_TRAINED");
    }
    response->set_name(request->name());
    response->set_state(Job::RUNNING);
    response->set_finish_step(7);
    response->set_total_steps(20);
    return grpc::Status::OK;
  }
  grpc::Status ResumeJob(GrpcContext*, const v1::ResumeJobRequest* request,
                         Job* response) override {
    response->set_name(request->name());
    response->set_state(Job::QUEUED);
    return grpc::Status::OK;
  }
  grpc::Status WatchJobs(GrpcContext*, const v1::WatchJobsRequest* request,
                         grpc::ServerWriter<v1::WatchJobsResponse>* writer) override {
    v1::WatchJobsResponse response;
    for (const Job& change : watched) {
      *response.mutable_job() = change;
      response.set_revision(response.revision() + 1);
      writer->Write(response);
    }
    response.clear_job();
    if (request->bookmarks()) writer->Write(response);
    return grpc::Status::OK;
  }
};

// The worker "w", as it stands at one look after the other; the last one stays.
struct FakeCluster final : v1::Cluster::Service {
  std::deque<Worker> looks;
  int jobs = 0;
  std::string reason;
  v1::Quota set;
  std::vector<v1::Quota> quotas;
  std::string deleted;
  v1::GetTraceRequest traced;
  v1::Trace trace;

  grpc::Status DrainWorker(GrpcContext*, const v1::DrainWorkerRequest* request,
                           Worker* response) override {
    if (request->name() != "w") return Refused(grpc::NOT_FOUND, "WORKER_NOT_FOUND");
    reason = request->reason();
    *response = looks.front();
    return grpc::Status::OK;
  }
  grpc::Status UndrainWorker(GrpcContext*, const v1::UndrainWorkerRequest*,
                             Worker* response) override {
    response->set_name("w");
    response->set_state(Worker::IDLE);
    return grpc::Status::OK;
  }
  grpc::Status ListWorkers(GrpcContext*, const v1::ListWorkersRequest*,
                           v1::ListWorkersResponse* response) override {
    *response->add_workers() = looks.front();
    if (looks.size() > 1) looks.pop_front();
    return grpc::Status::OK;
  }
  grpc::Status GetCluster(GrpcContext*, const v1::GetClusterRequest*,
                          v1::ClusterStatus* response) override {
    v1::Group& group = *response->add_groups();
    group.set_name("group-1");
    for (int i = 0; i < jobs; ++i) group.add_jobs("job-" + std::to_string(i));
    if (jobs > 0) --jobs;
    return grpc::Status::OK;
  }
  grpc::Status GetTrace(GrpcContext*, const v1::GetTraceRequest* request,
                        v1::Trace* response) override {
    if (request->job() != "job-a") return Refused(grpc::NOT_FOUND, "JOB_NOT_FOUND");
    traced = *request;
    *response = trace;
    return grpc::Status::OK;
  }
  grpc::Status SetQuota(GrpcContext*, const v1::SetQuotaRequest* request,
                        v1::Quota* response) override {
    *response = set = request->quota();
    return grpc::Status::OK;
  }
  grpc::Status ListQuotas(GrpcContext*, const v1::ListQuotasRequest*,
                          v1::ListQuotasResponse* response) override {
    for (const v1::Quota& quota : quotas) *response->add_quotas() = quota;
    return grpc::Status::OK;
  }
  grpc::Status DeleteQuota(GrpcContext*, const v1::DeleteQuotaRequest* request,
                           google::protobuf::Empty*) override {
    deleted = request->label();
    return grpc::Status::OK;
  }
};

Worker Standing(Worker::State state) {
  Worker worker;
  worker.set_name("w");
  worker.set_state(state);
  worker.set_group(state == Worker::DRAINING ? "group-1" : "");
  worker.set_drained(true);
  worker.set_drain_reason("a new disk");
  return worker;
}

struct Fixture {
  FakeJobs jobs;
  FakeCluster cluster;
  Served served{{&jobs, &cluster}};

  Ran Run(const std::string& arguments, bool json = false) const {
    return served.Run(arguments, json);
  }
};

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST_CASE_METHOD(Fixture, "a job is to finish, and says where it ends") {
  const Ran finished = Run("finish job-a");
  CHECK(finished.reason == "OK");
  CHECK(finished.out.empty());
  CHECK(finished.err == "job-a: RUNNING, ends at step 7 of 20\n");
  CHECK(Run("finish job-done").reason == "NOTHING_TRAINED");
  CHECK(Run("finish").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "jobs are paused and resumed one after the other") {
  const Ran paused = Run("pause job-a job-b");
  CHECK(paused.reason == "OK");
  CHECK(paused.out.empty());
  CHECK(paused.err == "job-a: PAUSING\njob-b: PAUSING\n");
  CHECK(Has(Run("resume job-a", true).out, R"("state": "QUEUED")"));
  jobs.paused.clear();
  CHECK(Run("pause").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "one of several jobs that is refused holds up no other") {
  const Ran one = Run("pause job-a job-done job-b job-a");
  CHECK(one.reason == "JOB_ENDED");
  CHECK(one.err == "job-a: PAUSING\njob-b: PAUSING\n");  // each of them once
  const Ran two = Run("pause job-done job-a job-ended");
  CHECK(two.error ==
        "error: JOB_ENDED: 2 of 3 jobs are as they were\n  job-done: as the script says\n"
        "  job-ended: as the script says\n");
  // Nothing is done where one of them is not there, or has no name.
  jobs.paused.clear();
  jobs.absent = "job-b";
  CHECK(Run("pause job-a job-b").reason == "JOB_NOT_FOUND");
  CHECK(Run("cancel job-a EMPTY").reason == "NO_NAME");
  CHECK(jobs.paused.empty());
}

TEST_CASE_METHOD(Fixture, "an empty name is a mistake, not all jobs") {
  for (const char* command :
       {"show EMPTY", "rm EMPTY", "watch EMPTY", "estimate EMPTY", "update --priority 1 EMPTY"}) {
    INFO(command);
    CHECK(Run(command).reason == "NO_NAME");
  }
  CHECK(Run("update job-a --priority 1 --etag EMPTY").reason == "USAGE");
  CHECK(Run("estimate").reason == "USAGE");
  CHECK(Run("estimate job-a -f job.json").reason == "USAGE");
  CHECK(Run("estimate -- job-a").reason == Run("estimate job-a").reason);
  CHECK(Run("estimate -- job-a").reason != "USAGE");
}

TEST_CASE_METHOD(Fixture, "a job is found by its name, unless several have it") {
  Job one;
  one.set_name("job-22222222");
  one.set_display_name("sums");
  one.set_state(Job::RUNNING);
  one.set_base_model("small");
  jobs.named = {one};
  one.set_name("job-33333333");
  one.set_display_name("job-twice");
  jobs.named.push_back(one);
  one.set_name("job-44444444");
  one.set_state(Job::FAILED);
  jobs.named.push_back(one);

  CHECK(Run("pause sums").err == "job-22222222: PAUSING\n");
  // All names are found before the first job is changed.
  jobs.paused.clear();
  const Ran twice = Run("pause sums job-twice");
  CHECK(twice.reason == "AMBIGUOUS_NAME");
  CHECK(twice.error ==
        "error: AMBIGUOUS_NAME: 2 jobs have the name 'job-twice'; say which by its id\n"
        "  job-33333333: RUNNING, of small\n  job-44444444: FAILED, of small\n");
  CHECK(jobs.paused.empty());
  for (const char* command :
       {"show", "events", "cancel", "rm", "update --priority 1", "resume", "metrics", "watch",
        "trace", "estimate", "checkpoint ls", "checkpoint get -o folder"}) {
    INFO(command);
    CHECK(Run(std::string(command) + " job-twice").reason == "AMBIGUOUS_NAME");
  }
  // An id is not looked for, and what names nothing is the service's to refuse.
  jobs.filter.clear();
  CHECK(Run("pause job-33333333").err == "job-33333333: PAUSING\n");
  CHECK(jobs.filter.empty());
  CHECK(Run("trace nobody").reason == "JOB_NOT_FOUND");
  Job odd;
  odd.set_name("job-55555555");
  odd.set_display_name(R"(\"a\")");  // as the filter writes it
  jobs.named = {odd};
  CHECK(Run(R"(pause '"a"')").err == "job-55555555: PAUSING\n");
}

TEST_CASE_METHOD(Fixture, "a priority is sent alone, with the etag if asked") {
  CHECK(Run("update job-a --priority -3").err == "job-a: priority -3, labels team=math\n");
  REQUIRE(jobs.updates.size() == 1);
  CHECK(jobs.updates[0].update_mask().paths_size() == 1);
  CHECK(jobs.updates[0].job().etag().empty());
  CHECK(Run("update job-a --priority 4 --etag 0").reason == "ETAG_MISMATCH");
  CHECK(jobs.updates.size() == 2);
  CHECK(Run("update job-a --priority 4 --etag 1").reason == "OK");
  CHECK(jobs.job.priority() == 4);
}

TEST_CASE_METHOD(Fixture, "labels are read, changed and written again until nobody came between") {
  jobs.races = 3;
  const Ran ran = Run("update job-a --label run=7 user=bob=ann --remove-label team");
  CHECK(ran.reason == "OK");
  CHECK(ran.err == "job-a: priority 0, labels raced=0, run=7, user=bob=ann\n");
  CHECK(jobs.updates.size() == 4);
  jobs.races = 1000;
  CHECK(Run("update job-a --label run=8").reason == "ETAG_MISMATCH");
  CHECK(jobs.updates.size() == 4 + 10);
  // A caller who names the etag wants no second try.
  CHECK(Run("update job-a --label run=8 --etag 1").reason == "ETAG_MISMATCH");
  CHECK(jobs.updates.size() == 4 + 10 + 1);
  CHECK(Run("update job-a").reason == "USAGE");
  CHECK(Run("update job-a --label run").reason == "USAGE");
  CHECK(Run("update job-a --priority high").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "a watch goes on behind a pause, and says what it waits for") {
  for (const Job::State state :
       {Job::RUNNING, Job::PAUSING, Job::PAUSED, Job::PAUSED, Job::QUEUED, Job::SUCCEEDED}) {
    jobs.job.set_state(state);
    jobs.watched.push_back(jobs.job);
  }
  Ran ran = Run("watch job-a --until-done");
  CHECK(ran.reason == "OK");
  CHECK(ran.err ==
        "lora: job-a is PAUSED; waiting until it is resumed (`lora resume job-a`) or cancelled\n");
  CHECK(Has(ran.out, "job-a  PAUSED  waits for `lora resume job-a`\n"));
  CHECK(Has(ran.out, "job-a  SUCCEEDED\n"));
  ran = Run("watch job-a --until-done", true);
  CHECK(std::count(ran.out.begin(), ran.out.end(), '\n') == 6);
}

TEST_CASE_METHOD(Fixture, "a watch of all jobs ends when all that were live are done") {
  for (const Job::State state : {Job::SUCCEEDED, Job::RUNNING, Job::SUCCEEDED}) {
    jobs.job.set_name(jobs.watched.size() < 1 ? "job-a" : "job-b");
    jobs.job.set_state(state);
    jobs.watched.push_back(jobs.job);
  }
  Ran ran = Run("watch --until-done");
  CHECK(ran.reason == "OK");
  CHECK(ran.out == "job-a  SUCCEEDED\njob-b  RUNNING\njob-b  SUCCEEDED\n");
  jobs.watched.clear();  // none is live
  ran = Run("watch --until-done");
  CHECK(ran.reason == "OK");
  CHECK(ran.out.empty());
}

TEST_CASE_METHOD(Fixture, "top is one table where stdout is no terminal") {
  jobs.job.set_state(Job::QUEUED);
  jobs.job.mutable_queue()->set_place(1);
  jobs.job.mutable_queue()->set_why("waits for a worker");
  cluster.looks = {Standing(Worker::DRAINING)};
  cluster.jobs = 2;
  Ran ran = Run("top");
  CHECK(ran.reason == "OK");
  CHECK(Has(ran.out, "1 workers, 0 jobs run, 1 wait, 0 paused; 0 tokens/s\n"));
  CHECK(Has(ran.out, "drained: a new disk\n"));
  CHECK(Has(ran.out, "place 1: waits for a worker\n"));
  CHECK(jobs.filter == "state != SUCCEEDED AND state != FAILED AND state != CANCELLED");
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

TEST_CASE_METHOD(Fixture, "a wait for a worker that goes, or is undrained, ends with that") {
  cluster.looks = {Standing(Worker::DRAINING), Standing(Worker::LOST)};
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
  CHECK(Run("trace job-a -o /no/such/folder/trace.json").reason == "FILE_UNWRITABLE");
}

TEST_CASE_METHOD(Fixture, "quotas are set as a whole, listed with their use, and deleted") {
  CHECK(Run("quota set team=math --running 4 --stored 10GiB").reason == "OK");
  CHECK(cluster.set.running_jobs() == 4);
  CHECK_FALSE(cluster.set.has_queued_jobs());
  CHECK(cluster.set.stored_bytes() == int64_t{10} << 30);
  CHECK(Run("quota set team=math --running -1").reason == "OK");  // the daemon refuses it
  CHECK(cluster.set.running_jobs() == -1);
  CHECK(Run("quota set 'team=*' --queued 7 --stored 1000", true).reason == "OK");
  CHECK(cluster.set.label() == "team=*");
  CHECK(cluster.set.stored_bytes() == 1000);
  for (const char* wrong : {"quota set", "quota set team=math --stored much", "quota set a=b -n 1",
                            "quota rm", "quota set team=math --running some"}) {
    INFO(wrong);
    CHECK(Run(wrong).reason == "USAGE");
  }
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
