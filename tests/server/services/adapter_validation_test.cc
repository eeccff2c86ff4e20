// The adapter of a job in PEFT's words: which modules they mean on the base model, what is refused
// and how it is mended.
#include <algorithm>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "server/core/catalog/model_shape.h"
#include "server/validation/adapter.h"
#include "server/validation/job.h"
#include "storage/models/model_description.h"
#include "tests/storage/published_configs.h"

namespace lorad::server {
namespace {

using Catch::Matchers::Contains;
using Change = std::function<void(v1::AdapterConfig&)>;

// init_from names this source.
JobReferences OnModel(const std::string& config, const v1::AdapterConfig& source = {}) {
  JobReferences references;
  references.description = storage::DescribeModel(config).value();
  references.model_known = true;
  references.model = {references.description->architecture,
                      storage::TargetModules(*references.description), 64};
  references.training_dataset_known = true;
  references.source_known = true;
  references.source = source;
  return references;
}

// On the tiny model, which has 2 layers.
JobReferences References(const v1::AdapterConfig& source = {}) {
  return OnModel(storage::kTiny, source);
}

v1::Job JobWith(const Change& change) {
  v1::Job job;
  job.set_base_model("m");
  job.set_training_dataset("d");
  change(*job.mutable_adapter());
  return job;
}

// "FIELD: WHAT" of every violation.
std::string Violations(v1::Job job, const JobReferences& references = References()) {
  std::string all;
  for (const FieldViolation& violation : CompleteJob(job, references)) {
    all += violation.field + ": " + violation.description + "\n";
  }
  return all;
}

// "q_proj 4/8 in 0 1; ..." of what the job trains.
std::string Modules(const Change& change, const JobReferences& references = References()) {
  v1::Job job = JobWith(change);
  std::string text;
  REQUIRE(CompleteJob(job, references).empty());
  for (const v1::AdapterModules& modules : job.adapter().modules()) {
    text += modules.target() + " " + std::to_string(modules.rank()) + "/" +
            std::to_string(static_cast<int>(modules.alpha()));
    for (const int layer : modules.layers()) text += " " + std::to_string(layer);
    text += "; ";
  }
  return text;
}

void Patterns(v1::AdapterConfig& adapter) {
  adapter.set_rank(4);
  adapter.add_target_modules("q_proj");
  adapter.add_target_modules("layers.1.mlp.up_proj");
  (*adapter.mutable_rank_pattern())["layers.0.self_attn.q_proj"] = 2;
  (*adapter.mutable_alpha_pattern())["up_proj"] = 24;
}

TEST_CASE("modules say what names and patterns mean on the model") {
  CHECK(Modules(Patterns) == "q_proj 2/8 0; q_proj 4/8 1; up_proj 4/24 1; ");
  CHECK(Modules([](auto& a) { a.add_target_modules("all-linear"); }) ==
        "q_proj 8/8; k_proj 8/8; v_proj 8/8; o_proj 8/8; gate_proj 8/8; up_proj 8/8; "
        "down_proj 8/8; ");
  CHECK(Modules([](auto& a) {
          a.set_target_regex(R"(.*\.(q|o)_proj)");
          a.set_exclude_regex(R"(.*layers\.1.*o_proj)");
        }) == "q_proj 8/8; o_proj 8/8 0; ");
  CHECK(Modules([](auto& a) {
          a.add_target_modules("q_proj");
          a.add_layers_to_transform(1);
        }) == "q_proj 8/8 1; ");
  // Names in all layers say it themselves; what a client sends is not taken.
  CHECK(Modules([](auto& a) {
          a.add_target_modules("q_proj");
          a.add_modules()->set_target("v_proj");
        }) == "");
}

TEST_CASE("memory is counted by modules where there are some") {
  v1::Job job = JobWith(Patterns);
  REQUIRE(CompleteJob(job, References()).empty());
  const planner::AdapterShape shape = ShapeOfAdapter(job.adapter());
  CHECK(shape.ToText() == "q_proj:2x1,q_proj:4x1,up_proj:4x1");
  CHECK(shape.rank_max() == 4);
  job = JobWith([](auto& a) { a.set_rank(3); });
  REQUIRE(CompleteJob(job, References()).empty());
  CHECK(ShapeOfAdapter(job.adapter()).ToText() == "q_proj:3,v_proj:3");
}

TEST_CASE("every mistake has its field and a remedy") {
  struct Case {
    Change change;
    std::string message;
  };
  const std::vector<Case> cases = {
      {[](auto& a) { a.add_target_modules("q_porj"); },
       "adapter.target_modules: must be among the model's q_proj, k_proj, v_proj, o_proj, "
       "gate_proj, up_proj, down_proj, got 'q_porj'; did you mean q_proj?\n"},
      {[](auto& a) { a.add_target_modules("mlp.q_proj"); },
       "adapter.target_modules: \"mlp.q_proj\" means no module"},
      {[](auto& a) { a.add_target_modules(".*q_proj"); },
       "adapter.target_modules: must be names such as q_proj, paths or ends of paths, got "
       "'.*q_proj'; an expression is a target_regex\n"},
      {[](auto& a) {
         a.add_target_modules("all-linear");
         a.add_target_modules("q_proj");
       },
       "adapter.target_modules: must be \"all-linear\" alone, or names\n"},
      {[](auto& a) {
         a.add_target_modules("q_proj");
         a.set_target_regex(".*");
       },
       "adapter.target_regex: cannot stand beside target_modules: leave one out\n"},
      {[](auto& a) { a.set_target_regex("q_proj"); },
       "adapter.target_regex: the expression \"q_proj\" matches no module that is trained; it must "
       "match all of a path, such as model.layers.0.self_attn.q_proj\n"},
      {[](auto& a) { a.set_target_regex("(([a-z0-9._]+)+)+[0-9]{9}"); },
       "adapter.target_regex: the regular expression \"(([a-z0-9._]+)+)+[0-9]{9}\" takes too long"},
      {[](auto& a) { a.set_target_regex(".*(q_proj"); },
       "adapter.target_regex: the regular expression \".*(q_proj\" is wrong at character 9: "
       "missing closing parenthesis\n"},
      {[](auto& a) { a.add_exclude_modules("x_proj"); },
       "adapter.exclude_modules: the model has no module \"x_proj\" to leave out"},
      {[](auto& a) { a.set_exclude_regex(".*"); },
       "adapter.exclude_regex: leaves no module to train\n"},
      {[](auto& a) {
         a.set_target_regex(".*q_proj");
         a.add_layers_to_transform(0);
       },
       "adapter.layers_to_transform: needs target_modules as names"},
      {[](auto& a) { a.add_layers_to_transform(7); },
       "adapter.layers_to_transform: layer 7 has no module that is trained; the model has layers "
       "0 to 1\n"},
      {[](auto& a) { a.add_layers_to_transform(-1); },
       "adapter.layers_to_transform: must be numbers of layers from 0 on, got -1\n"},
      {[](auto& a) { (*a.mutable_rank_pattern())["k_proj"] = 4; },
       "adapter.rank_pattern: \"k_proj\" matches no module that is trained"},
      {[](auto& a) { (*a.mutable_rank_pattern())["q_proj"] = 513; },
       "adapter.rank_pattern.q_proj: must be between 1 and 512, got 513\n"},
      {[](auto& a) { (*a.mutable_alpha_pattern())["q_proj"] = 0; },
       "adapter.alpha_pattern.q_proj: must be at least 1e-09 and at most 1e+09, got 0\n"},
      {[](auto& a) {
         (*a.mutable_alpha_pattern())["q_proj"] = 1;
         (*a.mutable_alpha_pattern())["self_attn.q_proj"] = 2;
       },
       "adapter.alpha_pattern: \"q_proj\" says 1 and \"self_attn.q_proj\" says 2 for "
       "model.layers.0.self_attn.q_proj, and PEFT takes the one that stands first"},
      {[](auto& a) { a.set_peft_config("{"); }, "adapter.peft_config: not JSON"},
      {[](auto& a) { a.set_peft_config(R"({"peft_type": "LOHA"})"); },
       "adapter.peft_config: peft_type \"LOHA\" is not implemented (LORA is)\n"},
      {[](auto& a) {
         a.set_peft_config(
             R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "use_dora": true,
                 "modules_to_save": ["lm_head"]})");
       },
       "adapter.peft_config: modules_to_save = [\"lm_head\"] is not implemented; use_dora = true "
       "is "
       "not implemented\n"},
      {[](auto& a) {
         a.set_peft_config(
             R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "init_lora_weights": "gaussian"})");
       },
       "adapter.peft_config: init_lora_weights must be true"},
      {[](auto& a) {
         a.set_peft_config(
             R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"],
                 "layers_to_transform": [0], "layers_pattern": ["h", "blocks"]})");
       },
       "adapter.peft_config: layers_pattern 'h', 'blocks' matches no layer of the model: it must "
       "be the name before the number, which is layers in model.layers.0.self_attn.q_proj"},
      {[](auto& a) {
         a.set_peft_config(
             R"({"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"],
                 "layers_to_transform": [0], "layers_pattern": "("})");
       },
       "adapter.peft_config: layers_pattern '(' matches no layer"},
  };
  for (const Case& c : cases) {
    INFO(c.message);
    const std::string violations = Violations(JobWith(c.change));
    CHECK_THAT(violations, Catch::Matchers::StartsWith(c.message));
    CHECK(std::ranges::count(violations, '\n') == 1);
  }
}

TEST_CASE(
    "targets have a default where PEFT has one for the family, and are to be said elsewhere") {
  const std::map<std::string, std::string> configs = {
      {"llama", storage::kLlama31_8b},
      {"mistral", storage::kMistral_7b_v03},
      {"qwen2", storage::kQwen25_05b},
      {"qwen3", storage::kQwen3_8b},
      {"gemma", storage::kGemma_7b},
      {"gemma2", storage::kGemma2_2b},
      {"phi3", storage::kPhi4},
      {"smollm3", storage::kSmolLm3_3b},
      {"olmo2", storage::kOlmo2_7b},
      {"granite", storage::kGranite33_8b},
      {"gemma3", storage::kGemma3_12b},
      {"olmo3", storage::kOlmo3_7b},
      {"mistral3", storage::kMistral3_24b},
      {"gemma3_text", R"({"model_type": "gemma3_text"})"},
  };
  const std::set<std::string> defaults = {"llama", "mistral", "qwen2",      "qwen3",
                                          "gemma", "gemma2",  "gemma3_text"};
  for (const auto& [family, config] : configs) {
    INFO(family);
    const JobReferences references = OnModel(config);
    v1::Job job = JobWith([](auto&) {});
    const bool complete = CompleteJob(job, references).empty();
    CHECK(complete == defaults.contains(family));
    CHECK(absl::StrJoin(job.adapter().target_modules(), " ") == (complete ? "q_proj v_proj" : ""));
    CHECK(Violations(JobWith([](auto& a) { a.add_target_modules("o_proj"); }), references).empty());
  }
  CHECK(Violations(JobWith([](auto&) {}), OnModel(storage::kPhi4)) ==
        "adapter.target_modules: must be said: as in PEFT there is no default for "
        "Phi3ForCausalLM; name some of qkv_proj, o_proj, gate_up_proj, down_proj, or "
        "\"all-linear\"\n");
  // One mistake is said once.
  const Change pattern = [](auto& a) { (*a.mutable_rank_pattern())["o_proj"] = 4; };
  CHECK(Violations(JobWith(pattern), OnModel(storage::kSmolLm3_3b)) ==
        "adapter.target_modules: must be said: as in PEFT there is no default for "
        "SmolLM3ForCausalLM; name some of q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
        "down_proj, or \"all-linear\"\n");
  JobReferences lacking = OnModel(storage::kSmolLm3_3b);
  lacking.source_known = false;
  CHECK_THAT(Violations(JobWith([](auto& a) { a.set_init_from("gone"); }), lacking),
             Catch::Matchers::StartsWith("adapter.init_from: there is no adapter"));
}

TEST_CASE("a PEFT config gives what the job does not say") {
  const auto peft = [](auto& a) {
    a.set_peft_config(R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "lora_dropout": 0.25,
        "use_rslora": true, "target_modules": ["q_proj", "k_proj"], "layers_to_transform": 1,
        "rank_pattern": {"k_proj": 5}, "task_type": null, "peft_version": "0.21.0"})");
  };
  v1::Job job = JobWith(peft);
  REQUIRE(CompleteJob(job, References()).empty());
  CHECK(job.adapter().peft_config().empty());
  CHECK(job.adapter().rank() == 3);
  CHECK(job.adapter().dropout() == 0.25);
  CHECK(job.adapter().use_rslora());
  CHECK(Modules(peft) == "q_proj 3/6 1; k_proj 5/6 1; ");
  CHECK(Modules([&](auto& a) {
          peft(a);
          a.set_rank(2);
          a.add_target_modules("k_proj");
          a.add_layers_to_transform(0);
        }) == "k_proj 5/6 0; ");
  CHECK(Modules([](auto& a) {
          a.set_peft_config(R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6,
              "target_modules": ["q_proj"], "layers_to_transform": 1,
              "layers_pattern": ["h", "layers"]})");
        }) == "q_proj 3/6 1; ");
  // Without targets, as a config before it has seen its model.
  job = JobWith([](auto& a) {
    a.set_peft_config(R"({"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": null})");
  });
  REQUIRE(CompleteJob(job, References()).empty());
  CHECK(job.adapter().target_modules_size() == 2);
}

TEST_CASE("a job goes on from an adapter with patterns") {
  v1::AdapterConfig source;
  Patterns(source);
  source.set_alpha(8);
  const JobReferences references = References(source);
  const auto from = [](auto& a) { a.set_init_from("a"); };
  CHECK(Modules(from, references) == "q_proj 2/8 0; q_proj 4/8 1; up_proj 4/24 1; ");
  // In other words, and with another alpha.
  CHECK(Modules(
            [&](auto& a) {
              from(a);
              a.set_target_regex(R"(.*(q_proj|layers\.1\.mlp\.up_proj))");
              a.set_alpha(1);
            },
            references) == "q_proj 2/1 0; q_proj 4/1 1; up_proj 4/24 1; ");
  CHECK_THAT(Violations(JobWith([&](auto& a) {
                          from(a);
                          a.add_target_modules("q_proj");
                          (*a.mutable_alpha_pattern())["q_proj"] = 1;
                        }),
                        references),
             Contains("adapter.target_modules: must mean the modules and ranks of 'a': this job "
                      "does not train it (model.layers.1.mlp.up_proj), and the adapter trains it "
                      "with rank 4; leave the fields out to take its own"));
  CHECK_THAT(Violations(JobWith([&](auto& a) {
                          from(a);
                          a.set_rank(16);
                        }),
                        references),
             Contains("adapter.rank_pattern: must mean the modules and ranks of 'a': this job "
                      "trains it with rank 16"));
}

TEST_CASE("a job goes on from every alpha that an adapter may have") {
  v1::AdapterConfig source;
  source.set_rank(4);
  source.set_alpha(1e9);
  source.add_target_modules("q_proj");
  (*source.mutable_alpha_pattern())["layers.0.self_attn.q_proj"] = 1e8;
  CHECK(Modules([](auto& a) { a.set_init_from("a"); }, References(source)) ==
        "q_proj 4/100000000 0; q_proj 4/1000000000 1; ");
  CHECK(Violations(JobWith([](auto& a) { a.set_alpha(1.1e9); })) ==
        "adapter.alpha: must be at least 1e-09 and at most 1e+09, got 1.1e+09\n");
}

TEST_CASE("of a source's patterns for one module the first counts, as in PEFT's file") {
  v1::AdapterConfig source;
  source.set_rank(4);
  source.set_alpha(8);
  source.add_target_modules("q_proj");
  (*source.mutable_alpha_pattern())["q_proj"] = 1;
  (*source.mutable_alpha_pattern())["layers.0.self_attn.q_proj"] = 2;
  CHECK(Modules([](auto& a) { a.set_init_from("a"); }, References(source)) ==
        "q_proj 4/2 0; q_proj 4/1 1; ");
}

TEST_CASE("an adapter that is alike in all layers is said by names") {
  const storage::ModelDescription model = storage::DescribeModel(storage::kTiny).value();
  storage::PeftConfig config;
  config.target_regex = ".*[qv]_proj";
  config.rank_pattern = {{".*", 16}};
  const v1::AdapterConfig plain = PlainIfAlike(config, model);
  CHECK(plain.rank() == 16);
  CHECK(plain.target_regex().empty());
  CHECK(plain.target_modules_size() == 2);
  CHECK(plain.rank_pattern().empty());
  config.rank_pattern = {{"q_proj", 16}};
  CHECK(PlainIfAlike(config, model).target_regex() == ".*[qv]_proj");
}

}  // namespace
}  // namespace lorad::server
