#include "client/job_file.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "client/calls/error.h"

namespace lorad::client {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto job = ParseJob(text, "job.json");
  if (job.ok()) return "";
  std::ostringstream out;
  PrintError(job.status(), out);
  return out.str();
}

TEST_CASE("the job of the documentation is read") {
  const auto job = ParseJob(R"({
    "display_name": "gsm8k-r8", "base_model": "smollm2-135m", "training_dataset": "gsm8k-train",
    "adapter": {"rank": 8, "alpha": 16, "dropout": 0.0, "target_modules": ["q_proj", "v_proj"], "use_rslora": false,
                "init_from": "", "seed": 18446744073709551615},
    "training": {"epochs": 1, "max_steps": 0, "learning_rate": 2e-4, "schedule": "COSINE", "shuffle": false,
                 "maxGradNorm": "0.5", "checkpoint_every_steps": 5e1, "eval_every_steps": null},
    "priority": -3, "labels": {"team": "math"}})",
                            "job.json");
  REQUIRE(job.ok());
  CHECK(job->display_name() == "gsm8k-r8");
  CHECK(job->adapter().rank() == 8);
  CHECK(job->adapter().alpha() == 16);
  CHECK(job->adapter().target_modules_size() == 2);
  CHECK(job->adapter().seed() == 18446744073709551615u);
  CHECK(job->training().schedule() == v1::TrainingConfig::COSINE);
  CHECK(job->training().learning_rate() == 2e-4);
  CHECK(job->training().max_grad_norm() == 0.5);
  CHECK(job->training().checkpoint_every_steps() == 50);
  CHECK(job->training().has_shuffle());
  CHECK_FALSE(job->training().has_seed());
  CHECK(job->priority() == -3);
  CHECK(job->labels().at("team") == "math");
}

TEST_CASE("lists and tables of numbers, and messages in lists") {
  const auto job = ParseJob(R"({"adapter": {
      "target_regex": ".*_proj", "layers_to_transform": [0, 2e0], "rank_pattern": {"q_proj": 4, "a.b": "8"},
      "alpha_pattern": {"q_proj": 0.5},
      "modules": [{"target": "q_proj", "layers": [1, 2], "rank": 4}, {"target": "v_proj"}]}})",
                            "job.json");
  REQUIRE(job.ok());
  const v1::AdapterConfig& adapter = job->adapter();
  CHECK(adapter.target_regex() == ".*_proj");
  CHECK(std::vector<int>(adapter.layers_to_transform().begin(),
                         adapter.layers_to_transform().end()) == std::vector<int>{0, 2});
  CHECK(adapter.rank_pattern().at("q_proj") == 4);
  CHECK(adapter.rank_pattern().at("a.b") == 8);
  CHECK(adapter.alpha_pattern().at("q_proj") == 0.5);
  REQUIRE(adapter.modules_size() == 2);
  CHECK(adapter.modules(0).layers_size() == 2);
  CHECK(adapter.modules(1).target() == "v_proj");
}

TEST_CASE("every mistake is named by field and line") {
  struct Case {
    const char* text;
    const char* line;
  };
  const Case cases[] = {
      {R"({"adapter": {"rnk": 8}})", "  adapter.rnk: line 1: no such field; did you mean rank?\n"},
      {R"({"zzzzzzzzzz": 8})", "  zzzzzzzzzz: line 1: no such field\n"},
      {"{\n\n\"priority\": 1.5}",
       "  priority: line 3: must be a whole number of 32 bits, got 1.5\n"},
      {R"({"priority": 3000000000})",
       "  priority: line 1: must be a whole number of 32 bits, got 3000000000\n"},
      {R"({"adapter": {"seed": -1}})",
       "  adapter.seed: line 1: must be a whole number from 0 to 2^64 - 1, got -1\n"},
      {R"({"adapter": 3})", "  adapter: line 1: must be an object, got 3\n"},
      {R"({"adapter": {"target_modules": "q_proj"}})",
       "  adapter.target_modules: line 1: must be a list, got \"q_proj\"\n"},
      {R"({"training": {"shuffle": 1}})",
       "  training.shuffle: line 1: must be true or false, got 1\n"},
      {R"({"training": {"schedule": "cosine"}})",
       "  training.schedule: line 1: must be one of CONSTANT, LINEAR, COSINE, got \"cosine\"\n"},
      {R"({"training": {"learning_rate": "fast"}})",
       "  training.learning_rate: line 1: must be a number, got \"fast\"\n"},
      {R"({"labels": {"a": 1}})", "  labels.a: line 1: must be a string, got 1\n"},
      {R"({"adapter": {"rank_pattern": {"q_proj": 1.5}}})",
       "  adapter.rank_pattern.q_proj: line 1: must be a whole number of 32 bits, got 1.5\n"},
      {R"({"adapter": {"alpha_pattern": [1]}})",
       "  adapter.alpha_pattern: line 1: must be an object of numbers, got [1]\n"},
      {R"({"adapter": {"layers_to_transform": ["x"]}})",
       "  adapter.layers_to_transform: line 1: must be a whole number of 32 bits, got \"x\"\n"},
      {R"({"state": "RUNNING"})", "  state: line 1: is set by the service; leave it out\n"},
      {"{\"priority\": 1,\n \"priority\": 2}", "  priority: line 1: given again in line 2\n"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK(ErrorOf(c.text) ==
          std::string("error: BAD_JOB_FILE: job.json: 1 field is wrong\n") + c.line);
  }
}

TEST_CASE("all mistakes are told at once") {
  const std::string error = ErrorOf("{\"a\": 1,\n\"priority\": true, \"adapter\": {\"rank\": []}}");
  CHECK(error.find("3 fields are wrong") != std::string::npos);
}

TEST_CASE("what is not JSON is placed by line and column") {
  CHECK(ErrorOf("{\n \"a\": 1,\n \"b\"\n}").find("parse error at line 4, column 1") !=
        std::string::npos);
  CHECK(ErrorOf("").find("not JSON") != std::string::npos);
  CHECK(ErrorOf("[1]").find("must hold one JSON object") != std::string::npos);
  CHECK(ErrorOf("{\"base_model\": \"\xff\"}").find("not JSON") != std::string::npos);
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK(ErrorOf("{\n\"priority\": " + deep + "}") ==
        "error: BAD_JOB_FILE: job.json: line 2: nested deeper than 16 levels\n");
}

}  // namespace
}  // namespace lorad::client
