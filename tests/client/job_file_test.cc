#include "client/job_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>
#include <sstream>

#include "client/calls/error.h"
#include "client/inputs/job_names.h"
#include "client/inputs/needless_names.h"

namespace lorad::client {
namespace {

std::string ErrorOf(const std::string& text) {
  const auto job = ParseJob(text, "job.json");
  if (job.ok()) return "";
  std::ostringstream out;
  PrintError(job.status(), out);
  return out.str();
}

bool Has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// A job with one field that is wrong, and the line that says so.
struct Mistake {
  const char* text;
  const char* line;
};

void CheckMistakes(absl::Span<const Mistake> mistakes) {
  for (const Mistake& mistake : mistakes) {
    INFO(mistake.text);
    CHECK(ErrorOf(mistake.text) ==
          std::string("error: BAD_JOB_FILE: job.json: 1 field is wrong\n") + mistake.line);
  }
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
  CHECK(ErrorOf("").find("not JSON") != std::string::npos);
  CHECK(ErrorOf("[1]").find("must hold one JSON object") != std::string::npos);
  CHECK(ErrorOf("{\"base_model\": \"\xff\"}").find("not JSON") != std::string::npos);
  const std::string deep = std::string(200'000, '[') + std::string(200'000, ']');
  CHECK(ErrorOf("{\n\"priority\": " + deep + "}") ==
        "error: BAD_JOB_FILE: job.json: line 2: nested deeper than 16 levels\n");
}

// The job of this text under one section, field by field.
std::string JobOf(const std::string& section, const std::string& text) {
  const std::string file =
      section.empty() ? "{" + text + "}" : "{\"" + section + "\": {" + text + "}}";
  EpochFields by_epoch;
  const auto job = ParseJob(file, "job.json", JobFormat::kJson, &by_epoch);
  if (!job.ok()) return ErrorOf(file);
  std::string fields = job->ShortDebugString();
  for (const std::string& field : by_epoch) fields += " " + field + ": epoch";
  return fields;
}

TEST_CASE("names of PEFT, TRL and transformers mean our fields") {
  struct Case {
    const char* section;
    const char* theirs;
    const char* ours;
  };
  const Case cases[] = {
      {"", R"("run_name": "a")", R"("display_name": "a")"},
      {"adapter", R"("r": 16)", R"("rank": 16)"},
      {"adapter", R"("r": 16, "rank": 16.0)", R"("rank": 16)"},
      {"adapter", R"("lora_alpha": 32)", R"("alpha": 32)"},
      {"adapter", R"("lora_dropout": 0.1)", R"("dropout": 0.1)"},
      {"adapter", R"("use_rslora": true)", R"("useRslora": true)"},
      {"adapter", R"("target_modules": "all-linear")", R"("target_modules": ["all-linear"])"},
      {"training", R"("num_train_epochs": 3.0)", R"("epochs": 3)"},
      {"training", R"("per_device_train_batch_size": 4)", R"("batch_size": 4)"},
      {"training", R"("per_device_train_batch_size": 2, "gradient_accumulation_steps": 4)",
       R"("batch_size": 8)"},
      {"training",
       R"("per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "batch_size": 8)",
       R"("batch_size": 8)"},
      {"training", R"("max_seq_length": 512)", R"("max_length": 512)"},
      {"training", R"("lr_scheduler_type": "cosine")", R"("schedule": "COSINE")"},
      {"training", R"("schedule": "cosine")", R"("schedule": "COSINE")"},
      {"training", R"("overflow": "skip", "train_on": "All")",
       R"("overflow": "SKIP", "train_on": "ALL")"},
      {"training", R"("lr_scheduler_type": "linear")", R"("schedule": "LINEAR")"},
      {"training", R"("lr_scheduler_type": "constant")", R"("schedule": "CONSTANT")"},
      {"training", R"("lr_scheduler_type": "constant_with_warmup", "warmup_steps": 2)",
       R"("schedule": "CONSTANT", "warmup_steps": 2)"},
      {"training", R"("lr_scheduler_type": "constant_with_warmup", "warmup_ratio": 0.1)",
       R"("schedule": "CONSTANT", "warmup_ratio": 0.1)"},
      {"training", R"("adam_beta1": 0.8)", R"("beta1": 0.8)"},
      {"training", R"("adam_beta2": 0.95)", R"("beta2": 0.95)"},
      {"training", R"("adam_epsilon": 1e-6)", R"("eps": 1e-6)"},
      {"training", R"("save_steps": 7)", R"("checkpoint_every_steps": 7)"},
      {"training", R"("save_total_limit": 2)", R"("checkpoint_keep_last": 2)"},
      {"training", R"("eval_steps": 7)", R"("eval_every_steps": 7)"},
      {"training", R"("data_seed": 7)", R"("seed": 7)"},
      {"training", R"("max_seq_length": null)", R"("max_length": null)"},
  };
  for (const Case& c : cases) {
    INFO(c.theirs);
    CHECK(JobOf(c.section, c.theirs) == JobOf(c.section, c.ours));
    CHECK(JobOf(c.section, c.ours).find("error") == std::string::npos);
  }
  // So that no name of the table goes without a row above.
  for (const JobName& name : JobNames()) {
    INFO(name.name);
    CHECK(std::any_of(std::begin(cases), std::end(cases), [&](const Case& c) {
      return std::string(c.theirs).find("\"" + std::string(name.name) + "\"") != std::string::npos;
    }));
  }
}

TEST_CASE("names that disagree, and values without an equal, are told by name and line") {
  const Mistake cases[] = {
      {R"({"adapter": {"rank": 8, "r": 16}})",
       "  adapter.r: line 1: says 16, but adapter.rank says 8: they are one field; leave one "
       "out\n"},
      {R"({"training": {"num_train_epochs": 1.5}})",
       "  training.num_train_epochs: line 1: must be a whole number (max_steps ends a job within "
       "an epoch), got 1.5\n"},
      {"{\"training\": {\"per_device_train_batch_size\": 2,\n"
       "\"gradient_accumulation_steps\": 4, \"batch_size\": 4}}",
       "  training.per_device_train_batch_size x gradient_accumulation_steps: line 1: says 8, but "
       "training.batch_size says 4: they are one field; leave one out\n"},
      {R"({"training": {"gradient_accumulation_steps": 4}})",
       "  training.gradient_accumulation_steps: line 1: needs per_device_train_batch_size beside "
       "it; batch_size is their product\n"},
      {R"({"training": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 0}})",
       "  training.gradient_accumulation_steps: line 1: must be a whole number of at least 1, got "
       "0\n"},
      {R"({"training": {"lr_scheduler_type": "polynomial"}})",
       "  training.lr_scheduler_type: line 1: must be one of CONSTANT, LINEAR, COSINE, got "
       "\"polynomial\"\n"},
      {R"({"training": {"lr_scheduler_type": "constant", "warmup_steps": 3}})",
       "  training.lr_scheduler_type: line 1: \"constant\" has no warm-up in transformers; say "
       "\"constant_with_warmup\", or leave the warm-up out\n"},
      {R"({"training": {"lr_scheduler_type": "constant", "warmup_ratio": 0.1}})",
       "  training.lr_scheduler_type: line 1: \"constant\" has no warm-up in transformers; say "
       "\"constant_with_warmup\", or leave the warm-up out\n"},
      {R"({"training": {"warmup_ratio": "much"}})",
       "  training.warmup_ratio: line 1: must be a number, got \"much\"\n"},
      {R"({"r": 8})", "  r: line 1: no such field; did you mean adapter.rank?\n"},
      {R"({"training": {"lora_alpha": 8}})",
       "  training.lora_alpha: line 1: no such field; did you mean adapter.alpha?\n"},
      {R"({"adapter": {"base_model": "x"}})",
       "  adapter.base_model: line 1: no such field; did you mean base_model?\n"},
      {R"({"training": {"num_train_epoch": 8}})",
       "  training.num_train_epoch: line 1: no such field; did you mean epochs?\n"},
  };
  CheckMistakes(cases);
}

TEST_CASE("names that say what is done anyway are taken out, with another value they are refused") {
  // What some say, and the field that is as good.
  const std::map<std::string, const char*> meanings = {
      {R"("train_sampling_strategy": "random")", R"("shuffle": true)"},
      {R"("completion_only_loss": true)", R"("train_on": "ASSISTANT")"},
      {R"("assistant_only_loss": true)", R"("train_on": "ASSISTANT")"},
      {R"("save_strategy": "no")", R"("checkpoint_every_steps": 0)"},
      {R"("eval_strategy": "no")", R"("eval_every_steps": 0)"},
      {R"("evaluation_strategy": "no")", R"("eval_every_steps": 0)"},
      {R"("save_strategy": "epoch")", R"("checkpoint_every_steps": "epoch")"},
      {R"("eval_strategy": "epoch")", R"("eval_every_steps": "epoch")"},
      {R"("evaluation_strategy": "epoch")", R"("eval_every_steps": "epoch")"}};
  for (const NeedlessName& name : NeedlessNames()) {
    INFO(name.name);
    const std::string said = "\"" + std::string(name.name) + "\": ";
    const std::string section(name.section);
    const std::string ours = section == "adapter" ? "\"rank\": 4" : "\"max_steps\": 3";
    const auto values = nlohmann::json::parse(name.values.empty() ? "[1, \"x\"]" : name.values);
    for (const auto& value : values) {
      INFO(value);
      const std::string theirs = said + value.dump();
      // Evaluations by steps want to know how many.
      const std::string beside = value == "steps" ? ours + ", \"eval_steps\": 5" : ours;
      const auto means = meanings.find(theirs);
      const std::string meant = means == meanings.end() ? "" : std::string(means->second) + ", ";
      CHECK(JobOf(section, theirs + ", " + beside) == JobOf(section, meant + beside));
      CHECK_FALSE(Has(JobOf(section, meant + beside), "error"));
    }
    const std::string expected = JobOf(section, ours);
    CHECK(JobOf(section, said + "null, " + ours) == expected);
    const std::string other = JobOf(section, said + "\"anything else\", " + ours);
    if (name.values.empty()) {
      CHECK(other == expected);
    } else {
      CHECK(other.find("got \"anything else\": " + std::string(name.why)) != std::string::npos);
    }
  }
  const Mistake cases[] = {
      {R"({"adapter": {"bias": "all"}})",
       "  adapter.bias: line 1: must be \"none\", or be left out, got \"all\": biases are not "
       "trained, LoRA's matrices alone\n"},
      {"{\"training\": {\n\"metric_for_best_model\": \"accuracy\"}}",
       "  training.metric_for_best_model: line 2: must be \"loss\" or \"eval_loss\", or be left "
       "out, "
       "got \"accuracy\": the best checkpoint is that of the lowest validation loss\n"},
      {R"({"training": {"train_on": "ALL", "completion_only_loss": true}})",
       "  training.completion_only_loss: line 1: says true, which is \"ASSISTANT\", but "
       "training.train_on says \"ALL\": they are one field; leave one out\n"},
      {R"({"training": {"eval_steps": 50, "eval_strategy": "no"}})",
       "  training.eval_strategy: line 1: says \"no\", which is 0, but training.eval_steps says "
       "50: "
       "they are one field; leave one out\n"},
      {R"({"training": {"eval_strategy": "steps"}})",
       "  training.eval_strategy: line 1: needs eval_steps beside it: how many steps from one "
       "evaluation to the next\n"},
      {R"({"training": {"eval_strategy": "steps", "logging_steps": 0.1}})",
       "  training.logging_steps: line 1: must be a whole number of 32 bits, or \"epoch\", "
       "got 0.1\n"},
      {R"({"training": {"eval_strategy": "epoch", "eval_steps": 5}})",
       "  training.eval_strategy: line 1: says \"epoch\", but training.eval_steps says 5: they are "
       "one "
       "field; leave one out\n"},
      {R"({"training": {"eval_steps": "epochs"}})",
       "  training.eval_steps: line 1: must be a whole number of 32 bits, or \"epoch\", got "
       "\"epochs\"\n"},
      {R"({"training": {"save_strategy": "best"}})",
       "  training.save_strategy: line 1: must be \"no\" or \"steps\" or \"epoch\", or be left "
       "out, got "
       "\"best\": checkpoints come by steps or epochs; checkpoint_keep_best = 1 keeps the best "
       "one\n"},
      {R"({"training": {"bf16": false}})",
       "  training.bf16: line 1: must be true, or be left out, got false: base models stay in the "
       "precision of their device: bf16 on GPUs (float32 where the daemon was started with "
       "--worker-precision fp32), float32 on CPUs\n"},
      {R"({"training": {"use_cpu": true}})",
       "  training.use_cpu: line 1: must be false, or be left out, got true: jobs train on the "
       "daemon's workers, whatever their device; lorad serve --workers cpu:1 has one on the CPU "
       "alone\n"},
      {R"({"training": {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 8}}}})",
       "  training.accelerator_config: line 1: must be {} or \"\", or be left out, got "
       "{\"gradient_accumulation_kwargs\":{\"num_steps\":8}}: the daemon runs jobs its own way; "
       "say "
       "gradient_accumulation_steps for its num_steps\n"},
      {R"({"bf16": true})", "  bf16: line 1: no such field; did you mean training.bf16?\n"},
  };
  CheckMistakes(cases);
  lorad::v1::Job job;
  CHECK(SetFields({"training.optim=adamw_torch", "adapter.bias=none"}, job).ok());
  CHECK(!SetFields({"training.optim=lion"}, job).ok());
}

TEST_CASE("evaluations by steps come as often as is said, in whatever name") {
  const std::string expected = JobOf("training", R"("eval_every_steps": 7)");
  for (const char* said :
       {R"("eval_steps": 7)", R"("eval_every_steps": 7)", R"("evalEverySteps": 7)",
        R"("logging_steps": 7)", R"("eval_steps": 7, "logging_steps": 1)"}) {
    for (const char* name : {"eval_strategy", "evaluation_strategy"}) {
      INFO(said);
      CHECK(JobOf("training", "\"" + std::string(name) + "\": \"steps\", " + said) == expected);
    }
  }
  CHECK(JobOf("training", R"("logging_steps": 7)") == JobOf("training", ""));
  CHECK(JobOf("training", R"("save_strategy": "steps")") == JobOf("training", ""));
  // In YAML 1.1 `no` without quotes is false; here it is text.
  const auto job =
      ParseJob("training: {eval_strategy: no, save_strategy: no}", "job.yaml", JobFormat::kYaml);
  REQUIRE(job.ok());
  CHECK(job->training().has_checkpoint_every_steps());
  CHECK(job->training().checkpoint_every_steps() == 0);
}

TEST_CASE("what comes once an epoch is told apart, and the last word counts") {
  EpochFields by_epoch;
  const auto read = ParseJob("training: {eval_strategy: epoch, save_steps: epoch}", "job.yaml",
                             JobFormat::kYaml, &by_epoch);
  REQUIRE(read.ok());
  CHECK(by_epoch == EpochFields{"checkpoint_every_steps", "eval_every_steps"});
  v1::Job job = *read;
  CHECK(SetFields({"training.save_steps=5", "training.max_steps=9"}, job, &by_epoch).ok());
  CHECK(job.training().checkpoint_every_steps() == 5);
  CHECK(by_epoch == EpochFields{"eval_every_steps"});
  CHECK(
      SetFields({"training.save_strategy=epoch", "training.eval_every_steps=null"}, job, &by_epoch)
          .ok());
  CHECK_FALSE(job.training().has_checkpoint_every_steps());
  CHECK(by_epoch == EpochFields{"checkpoint_every_steps"});
  // No other field may be one, nor any where nobody asks.
  CHECK_FALSE(SetFields({"training.max_steps=epoch"}, job, &by_epoch).ok());
  CHECK_FALSE(SetFields({"training.eval_steps=epoch"}, job).ok());
}

TEST_CASE("a field in camelCase is the field") {
  CHECK(Has(JobOf("training", R"("evalEverySteps": 5, "eval_steps": 7)"),
            "training.eval_steps: line 1: says 7, but training.eval_every_steps says 5"));
  CHECK(Has(JobOf("training", R"("maxSteps": 5, "max_steps": 5)"),
            "training.maxSteps: line 1: is max_steps again"));
  CHECK(Has(JobOf("training", R"("maxSteps": 1.5)"), "training.maxSteps: line 1: must be a whole"));
}

TEST_CASE("the documentation has a row for every name") {
  std::ifstream file("docs/api.md");
  const std::string page((std::istreambuf_iterator<char>(file)), {});
  for (const NeedlessName& name : NeedlessNames()) {
    INFO(name.name);
    CHECK(page.find("`" + std::string(name.name) + "`") != std::string::npos);
  }
  for (const JobName& name : JobNames()) {
    const std::string section = name.section.empty() ? "" : std::string(name.section) + ".";
    INFO(name.name);
    CHECK(page.find("| `" + section + std::string(name.name) + "` | `" + std::string(name.field) +
                    "`") != std::string::npos);
  }
}

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
