#include "client/job_file.h"

#include <catch2/catch.hpp>
#include <sstream>

#include "client/calls/error.h"
#include "tests/client/job_files.h"

namespace lorad::client {
namespace {

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
  const Mistake cases[] = {
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
       "  adapter.target_modules: line 1: must be a list of names, or \"all-linear\", got "
       "\"q_proj\"; an "
       "expression is a target_regex\n"},
      {R"({"training": {"shuffle": 1}})",
       "  training.shuffle: line 1: must be true or false, got 1\n"},
      {R"({"training": {"schedule": "polynomial"}})",
       "  training.schedule: line 1: must be one of CONSTANT, LINEAR, COSINE, got "
       "\"polynomial\"\n"},
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
  CheckMistakes(cases);
}

TEST_CASE("all mistakes are told at once") {
  const std::string error = ErrorOf("{\"a\": 1,\n\"priority\": true, \"adapter\": {\"rank\": []}}");
  CHECK(error.find("3 fields are wrong") != std::string::npos);
}

TEST_CASE("what is not JSON is placed by line and column") {
  CHECK(ErrorOf("{\n \"a\": 1,\n \"b\"\n}").find("parse error at line 4, column 1") !=
        std::string::npos);
  CHECK(ErrorOf("").find("is empty; a job has") != std::string::npos);
  CHECK(ErrorOf("[1]").find("must hold one JSON object") != std::string::npos);
  CHECK(ErrorOf("{\"base_model\": \"\xff\"}").find("not JSON") != std::string::npos);
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK(ErrorOf("{\n\"priority\": " + deep + "}") ==
        "error: BAD_JOB_FILE: job.json: line 2: nested deeper than 16 levels\n");
}

// The job of this text under one section, field by field.
TEST_CASE("a job as the service shows it is a job file, without what the service says") {
  const std::string shown =
      R"({"name": "job-1", "display_name": "sums", "base_model": "small",
          "adapter": {"rank": 8, "rank_pattern": {}, "modules": [{"target": "q_proj", "rank": 8}]},
          "training": {"epochs": null, "max_steps": 4, "schedule": "SCHEDULE_UNSPECIFIED"},
          "state": "RUNNING", "create_time": "2026-01-31T12:00:05Z", "etag": "7", "step": 3,
          "error": null})";
  const auto job = ParseJob(shown, "job.json");
  REQUIRE(job.ok());
  CHECK(job->display_name() == "sums");
  CHECK(job->adapter().rank() == 8);
  CHECK(job->adapter().modules_size() == 0);
  CHECK(job->training().max_steps() == 4);
  CHECK(job->name().empty());
  CHECK(job->step() == 0);
  // Mistakes are told all the same, and what has no etag was written by hand.
  CHECK(Has(ErrorOf(R"({"state": "RUNNING", "create_time": "", "etag": "7", "stat": 1})"),
            "stat: line 1: no such field"));
  CHECK(Has(ErrorOf(R"({"step": 3, "create_time": ""})"), "step: line 1: is set by the service"));
}

TEST_CASE("fields are set by their paths") {
  struct Case {
    const char* setting;
    const char* field;  // as the text form of the job has it, without line ends
  };
  const Case cases[] = {
      {"training.learning_rate=1e-3", "learning_rate: 0.001"},
      {"training.learningRate=.5", "learning_rate: 0.5"},
      {"training.num_train_epochs=3", "epochs: 3"},
      {"training.lr_scheduler_type=cosine", "schedule: COSINE"},
      {"training.shuffle=false", "shuffle: false"},
      {"adapter.r=16", "rank: 16"},
      {"adapter.target_modules=[\"k_proj\"]", "target_modules: \"k_proj\""},
      {"adapter.target_modules=all-linear", "target_modules: \"all-linear\""},
      {"adapter.rank_pattern.layers.0.q_proj=4", "key: \"layers.0.q_proj\" value: 4"},
      {"display_name=12", "display_name: \"12\""},
      {"run_name=true", "display_name: \"true\""},
      {"labels.team=7", "key: \"team\" value: \"7\""},
      {"labels.a.b=x=y", "key: \"a.b\" value: \"x=y\""},
      {"priority=-3", "priority: -3"},
  };
  const auto base = ParseJob(R"({"display_name": "sums", "labels": {"team": "math", "who": "me"},
      "adapter": {"r": 8, "target_modules": ["q_proj"]},
      "training": {"epochs": 1, "learning_rate": 2e-4}})",
                             "job.json");
  REQUIRE(base.ok());
  for (const Case& c : cases) {
    INFO(c.setting);
    v1::Job job = *base;
    CHECK(SetFields({c.setting}, job).ok());
    INFO(job.ShortDebugString());
    CHECK(Has(job.ShortDebugString(), c.field));
    CHECK(job.labels().at("who") == "me");
    CHECK(job.adapter().target_modules_size() == 1);
  }
  v1::Job job = *base;
  CHECK(SetFields({"training.epochs=2", "training.epochs=5", "training.learning_rate=null"}, job)
            .ok());
  CHECK(job.training().epochs() == 5);
  CHECK_FALSE(job.training().has_learning_rate());
  CHECK(SetFields({"labels.team=art"}, job).ok());
  CHECK(job.labels().at("team") == "art");
  CHECK(job.labels().size() == 2);
}

TEST_CASE("what cannot be set is told by field") {
  struct Case {
    const char* setting;
    const char* error;
  };
  const Case cases[] = {
      {"training.learning_rat=1",
       "training.learning_rat: no such field; did you mean learning_rate"},
      {"training.learning_rate=fast", "training.learning_rate: must be a number, got \"fast\""},
      {"training.learning_rate=", "training.learning_rate: must be a number, got \"\""},
      {"training.epochs.x=1", "training.epochs: must be a whole number of 32 bits, got {\"x\":1}"},
      {"training=3", "training: must be an object, got 3"},
      {"nothing.at.all=3", "nothing: no such field"},
      {"training.=3", "training.: no such field"},
      {"state=RUNNING", "state: is set by the service; leave it out"},
      {"learning_rate=1",
       "learning_rate: is set by the service; did you mean training.learning_rate?"},
      {"training", "USAGE: --set wants FIELD=VALUE"},
      {"=3", "USAGE: --set wants FIELD=VALUE"},
  };
  for (const Case& c : cases) {
    INFO(c.setting);
    v1::Job job;
    const absl::Status status = SetFields({c.setting}, job);
    REQUIRE_FALSE(status.ok());
    std::ostringstream out;
    PrintError(status, out);
    INFO(out.str());
    CHECK(Has(out.str(), c.error));
  }
  v1::Job job;
  std::ostringstream out;
  PrintError(SetFields({"priority=x", "adapter.rank=1.5"}, job), out);
  CHECK(Has(out.str(), "--set: 2 fields are wrong"));
}

}  // namespace
}  // namespace lorad::client
