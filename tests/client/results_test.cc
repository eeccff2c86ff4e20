// The commands that show what came of jobs: ls, metrics, compare, checkpoint rm; and how wide text is.
#include <grpcpp/grpcpp.h>

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/text/plot.h"
#include "client/text/table.h"
#include "client/text/width.h"
#include "lorad/v1/checkpoints.grpc.pb.h"
#include "lorad/v1/jobs.grpc.pb.h"
#include "tests/client/run_command.h"

namespace lorad::client {
namespace {

using v1::Job;
using GrpcContext = grpc::ServerContext;
using Lines = std::vector<std::string>;

// Two jobs of which the second has another learning rate and failed.
struct FakeJobs final : v1::Jobs::Service {
  std::map<std::string, Job> jobs;
  int pages = 0;
  int steps = 3;

  FakeJobs() {
    for (const char* name : {"job-aaaaaaaa", "job-bbbbbbbb"}) {
      Job& job = jobs[name];
      job.set_name(name);
      job.set_base_model("small");
      job.mutable_training()->set_learning_rate(1e-3);
      job.set_state(Job::SUCCEEDED);
      job.set_step(3);
      job.set_total_steps(3);
      job.set_loss(0.5);
    }
    Job& second = jobs["job-bbbbbbbb"];
    second.set_display_name("faster");
    second.mutable_training()->set_learning_rate(2e-3);
    (*second.mutable_labels())["team"] = "math";
    second.set_state(Job::FAILED);
  }
  grpc::Status GetJob(GrpcContext*, const v1::GetJobRequest* request, Job* response) override {
    const auto found = jobs.find(request->name());
    if (found == jobs.end()) return {grpc::NOT_FOUND, "no such job"};
    *response = found->second;
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(GrpcContext*, const v1::ListJobsRequest* request,
                        v1::ListJobsResponse* response) override {
    ++pages;
    for (int i = 0; i < std::min(request->page_size(), 1500); ++i) {
      Job& job = *response->add_jobs();
      job.set_name(absl::StrCat("job-", i));
      job.set_display_name(i % 2 == 0 ? "句子" : "sentences");
    }
    if (pages == 1) response->set_next_page_token("more");
    return grpc::Status::OK;
  }
  grpc::Status GetMetrics(GrpcContext*, const v1::GetMetricsRequest* request,
                          v1::GetMetricsResponse* response) override {
    if (request->series() == v1::GetMetricsRequest::EVALUATION) {
      for (const int step : {0, 1, 2, 3}) {
        v1::EvaluationMetrics& one = *response->add_evaluations();
        one.set_step(step);
        one.set_validation_loss(step == 1 || step == 2 ? 0.25 : 1.5);
      }
      return grpc::Status::OK;
    }
    for (int step = 1; step <= steps; ++step) {
      v1::StepMetrics& one = *response->add_steps();
      one.set_step(step);
      one.set_loss(1.0 / 3 / step);
      one.set_tokens(7);
    }
    return grpc::Status::OK;
  }
};

struct FakeCheckpoints final : v1::Checkpoints::Service {
  std::set<std::int64_t> steps = {2, 4, 6};

  grpc::Status DeleteCheckpoint(GrpcContext*, const v1::DeleteCheckpointRequest* request,
                                google::protobuf::Empty*) override {
    if (steps.erase(request->step()) > 0) return grpc::Status::OK;
    return {grpc::NOT_FOUND, absl::StrCat("there is no step ", request->step())};
  }
};

struct Fixture {
  FakeJobs jobs;
  FakeCheckpoints checkpoints;
  Served served{{&jobs, &checkpoints}};

  Ran Run(const std::string& arguments, bool json = false) const {
    return served.Run(arguments, json);
  }
};

TEST_CASE_METHOD(Fixture, "a job shows the losses between which it was evaluated") {
  Job& job = jobs.jobs["job-aaaaaaaa"];
  const auto shown = [&] {
    const Lines lines = absl::StrSplit(Run("show job-aaaaaaaa").out, '\n');
    for (const std::string& line : lines) {
      if (line.starts_with("validation loss")) return line.substr(line.find("  "));
    }
    return std::string("nothing");
  };
  const std::string space(10, ' ');
  CHECK(shown() == space + "-");
  job.set_initial_validation_loss(1.5);
  job.set_validation_loss(1.5);
  CHECK(shown() == space + "1.5000 before training");
  job.set_validation_loss(1.25);
  CHECK(shown() == space + "1.5000 -> 1.2500");
}

TEST_CASE_METHOD(Fixture, "metrics are CSV with all digits, or a picture") {
  CHECK(Run("metrics job-aaaaaaaa --csv").out ==
        "step,loss,grad_norm,learning_rate,trained_tokens,tokens,step_time_ms\n"
        "1,0.33333333333333331,0,0,0,7,0\n2,0.16666666666666666,0,0,0,7,0\n"
        "3,0.1111111111111111,0,0,0,7,0\n");
  CHECK(Run("metrics job-aaaaaaaa --csv --evaluation").out ==
        "step,validation_loss,trained_tokens\n0,1.5,0\n1,0.25,0\n2,0.25,0\n3,1.5,0\n");
  const Ran plot = Run("metrics job-aaaaaaaa --plot");
  CHECK(plot.reason == "OK");
  CHECK(plot.out.starts_with("* loss   o validation loss\n1.5000 |o"));
  CHECK(plot.out.find("step 0") != std::string::npos);
  jobs.steps = 0;
  CHECK(Run("metrics job-aaaaaaaa --plot --evaluation").out.starts_with("o validation loss\n"));
  CHECK(Run("metrics job-aaaaaaaa --plot --csv").reason == "USAGE");
  CHECK(Run("metrics job-aaaaaaaa --plot", true).reason == "USAGE");
}

TEST_CASE("a plot spans its lines and leaves out what is not finite") {
  const double nan = std::nan("");
  const std::vector<Curve> curves = {{.points = {{1, 4}, {2, nan}, {3, 2}, {5, 0}}}};
  const Lines lines = PlotLines(curves, 30, 6);
  REQUIRE(lines.size() == 6);
  CHECK(lines[0] == "4.0000 |*");
  CHECK(lines[2] == "2.0000 |           *");
  CHECK(lines[4] == "0.0000 |                     *");
  CHECK(lines[5] == "        step 1               5");
  CHECK(PlotLines({{.points = {{1, nan}}}}, 30, 6).empty());
  CHECK(PlotLines({{.points = {{7, 1.0}}}}, 30, 6)[2] == "1.0000 |*");  // one point
}

TEST_CASE_METHOD(Fixture, "jobs are compared by what differs, and by what came of them") {
  const Ran ran = Run("compare job-aaaaaaaa job-bbbbbbbb");
  CHECK(ran.reason == "OK");
  const Lines lines = absl::StrSplit(ran.out, '\n');
  CHECK(lines[0].find("faster") != std::string::npos);
  CHECK(lines[1].starts_with("labels.team"));
  CHECK(lines[2].starts_with("training.learning_rate  0.001"));
  CHECK(lines[3].starts_with("state"));
  CHECK(ran.out.find("0.2500 at 2") != std::string::npos);
  CHECK(ran.out.find("base_model") == std::string::npos);
  const auto object = nlohmann::json::parse(Run("compare job-aaaaaaaa job-bbbbbbbb", true).out);
  CHECK(object["different"]["training.learning_rate"][1] == 0.002);
  CHECK(object["different"]["labels.team"][0].is_null());
  CHECK(object["results"][1]["state"] == "FAILED");
  CHECK(Run("compare job-aaaaaaaa").reason == "USAGE");
  CHECK(Run("compare job-aaaaaaaa job-aaaaaaaa").reason == "ONE_JOB");
  CHECK(Run("compare job-aaaaaaaa job-cccccccc").reason == "NOT_FOUND");
}

TEST_CASE_METHOD(Fixture, "checkpoints are deleted one by one") {
  CHECK(Run("checkpoint rm job-aaaaaaaa --step 2 --step 6").reason == "OK");
  CHECK(checkpoints.steps == std::set<std::int64_t>{4});
  CHECK(Run("checkpoint rm job-aaaaaaaa --step 2 --step 4").reason == "NOT_FOUND");
  CHECK(checkpoints.steps.empty());
  CHECK(Run("checkpoint rm job-aaaaaaaa --step 2 --step 4").error ==
        "error: NOT_FOUND: 2 checkpoints are as they were\n  step 2: there is no step 2\n"
        "  step 4: there is no step 4\n");
  CHECK(Run("checkpoint rm job-aaaaaaaa").reason == "USAGE");
}

TEST_CASE_METHOD(Fixture, "the newest so many jobs are listed") {
  CHECK(std::ranges::count(Run("ls --limit 3").out, '\n') == 4);
  CHECK(jobs.pages == 1);
  jobs.pages = 0;
  CHECK(std::ranges::count(Run("ls --limit 1200").out, '\n') == 1201);
  CHECK(jobs.pages == 2);
  CHECK(Run("ls --limit 0").reason == "USAGE");
  CHECK(Run("ls --limit -1").reason == "USAGE");
}

TEST_CASE("wide letters count two columns, those that combine none") {
  CHECK(WidthOf("abc") == 3);
  CHECK(WidthOf("句子") == 4);
  CHECK(WidthOf("😀") == 2);
  CHECK(WidthOf("e\u0301") == 1);
  CHECK(WidthOf("\xff\xfe") == 2);  // no UTF-8
  CHECK(CutToWidth("句子", 3) == "句");
  CHECK(CutToWidth("a句", 2) == "a");
  CHECK(CutToWidth("e\u0301x", 1) == "e\u0301");
}

TEST_CASE("tables of wide letters stay straight, and fit 60, 80 and 120 columns") {
  Table table({"NAME", "MODEL", "STEP", "WHY"});
  table.Add({"句子😀", "small", "1", "it waits for a worker that has room for it, 等待"});
  table.Add({"words", "a-model-with-a-long-name", "12", "-"});
  for (const int columns : {20, 60, 80, 120}) {
    const Lines lines = table.Fit(columns, {0, 2, 1});
    for (const std::string& line : lines) CHECK(WidthOf(line) <= static_cast<std::size_t>(columns));
    const std::size_t at =
        lines[1].find(lines[1].find("small") == std::string::npos ? "1" : "small");
    CHECK(WidthOf(lines[1].substr(0, at)) >= WidthOf("句子😀") + 2);
  }
  CHECK(table.Fit(80, {0, 2, 1})[2].starts_with("words   a-model"));
}

}  // namespace
}  // namespace lorad::client
