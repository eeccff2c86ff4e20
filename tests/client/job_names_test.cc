// The names of PEFT, TRL and transformers in a job file.
#include "client/inputs/job_names.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <iterator>

#include "client/inputs/needless_names.h"
#include "client/job_file.h"
#include "tests/client/job_files.h"

namespace lorad::client {
namespace {

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

TEST_CASE("who writes a name that is not taken is told what is likely meant") {
  struct Case {
    const char* section;
    const char* text;
    const char* meant;
  };
  const Case cases[] = {
      {"training", R"("lr": 1e-3)", "no such field; did you mean learning_rate?"},
      {"", R"("lr": 1e-3)", "no such field; did you mean training.learning_rate?"},
      {"training", R"("cutoff_len": 512)", "no such field; did you mean max_length?"},
      {"adapter", R"("lora_r": 8)", "no such field; did you mean rank?"},
      {"training", R"("lora_rank": 8)", "no such field; did you mean adapter.rank?"},
  };
  for (const Case& c : cases) {
    INFO(c.text);
    CHECK(JobOf(c.section, c.text).find(c.meant) != std::string::npos);
  }
  CHECK(JobOf("training", R"("lr_scheduler_type": "polynomial")")
            .find("must be one of CONSTANT, LINEAR, COSINE, got \"polynomial\"") !=
        std::string::npos);
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
      {"training", R"("max_steps": -1, "num_train_epochs": 3)", R"("epochs": 3)"},
      {"training", R"("max_steps": -1.0)", R"("max_steps": 0)"},
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
       "  training.gradient_accumulation_steps: line 1: must be a whole number from 1 to "
       "2147483647, got 0\n"},
      {R"({"training": {"per_device_train_batch_size": 4294967296, "gradient_accumulation_steps": 1}})",
       "  training.per_device_train_batch_size: line 1: must be a whole number from 1 to "
       "2147483647, got 4294967296\n"},
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

}  // namespace
}  // namespace lorad::client
