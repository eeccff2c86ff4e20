// That the reference runs can fail: with one feature of a model changed, a loss of its run lies
// over ten times the tolerance from PEFT's.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/golden/golden_run.h"

namespace lorad::worker {
namespace {

// Such a change of a config must move a loss by more.
constexpr double kMovedLeast = 10 * kLossTolerance;

struct Change {
  const char* model;
  const char* what;
  const char* patch;  // merged into config.json
};

const Change kChanges[] = {
    {"qwen3", "another theta", R"({"rope_parameters": {"rope_theta": 1100.0}})"},
    {"qwen3", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"qwen3_yarn", "factor left out", R"({"rope_parameters": {"factor": 1.0}})"},
    {"qwen3_yarn", "attention_factor 1", R"({"rope_parameters": {"attention_factor": 1.0}})"},
    {"qwen3_yarn", "another border of the blend", R"({"rope_parameters": {"beta_fast": 2.0}})"},
    {"mistral_window", "window 17", R"({"sliding_window": 17})"},
    {"mistral_window", "no window", R"({"sliding_window": null})"},
    {"gemma", "SiLU", R"({"hidden_act": "silu"})"},
    {"gemma2", "window 17", R"({"sliding_window": 17})"},
    {"gemma2", "windows in the other layers",
     R"({"layer_types": ["full_attention", "sliding_attention", "full_attention"]})"},
    {"gemma2", "query scale of the head size", R"({"query_pre_attn_scalar": 32})"},
    {"gemma2", "no cap of scores", R"({"attn_logit_softcapping": null})"},
    {"gemma2", "no cap of logits", R"({"final_logit_softcapping": null})"},
    {"gemma3", "window 17", R"({"sliding_window": 17})"},
    {"gemma3", "query scale of the head size", R"({"query_pre_attn_scalar": 32})"},
    {"gemma3", "scaling left out", R"({"rope_parameters": {"full_attention": {"factor": 1.0}}})"},
    {"gemma3", "one rope for all layers",
     R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 4.0,
         "rope_theta": 100000.0}}})"},
    {"gemma3_tower", "window 17", R"({"text_config": {"sliding_window": 17}})"},
    {"mistral3_tower", "another theta",
     R"({"text_config": {"rope_parameters": {"rope_theta": 1100.0}}})"},
    {"phi3", "all features turn",
     R"({"rope_parameters": {"partial_rotary_factor": 1.0, "rope_type": "default",
         "short_factor": null, "long_factor": null}, "partial_rotary_factor": null})"},
    {"phi3", "short frequencies for long sequences",
     R"({"original_max_position_embeddings": 256,
         "rope_parameters": {"attention_factor": 1.1902380714238083}})"},
    {"phi3", "the border one row later", R"({"original_max_position_embeddings": 33,
         "rope_parameters": {"attention_factor": 1.2649110640673518}})"},
    {"smollm3", "rope in a layer without", R"({"no_rope_layers": [1, 1, 1]})"},
    {"olmo2", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"olmo3", "window 17", R"({"sliding_window": 17})"},
    {"olmo3", "yarn left out",
     R"({"rope_parameters": {"full_attention": {"factor": 1.0, "attention_factor": 1.0}}})"},
    {"granite", "embedding_multiplier left out", R"({"embedding_multiplier": 1.0})"},
    {"granite", "residual_multiplier left out", R"({"residual_multiplier": 1.0})"},
    {"granite", "attention_multiplier of the head size", R"({"attention_multiplier": 0.25})"},
    {"granite", "logits_scaling left out", R"({"logits_scaling": 1.0})"},
};

// A copy of the golden model with its config changed, its weights linked.
std::string Changed(const Change& change) {
  const auto folder = std::filesystem::temp_directory_path() / "changed_golden_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::filesystem::path from = kGoldenFolder + change.model + "/model";
  nlohmann::json config = nlohmann::json::parse(ReadFile(from / "config.json"));
  config.merge_patch(nlohmann::json::parse(change.patch));
  std::ofstream(folder / "config.json") << config;
  std::filesystem::copy(from / "model.safetensors", folder / "model.safetensors");
  return folder;
}

// The largest relative difference of a loss of four steps from the run's.
double Moved(GoldenJob golden, const std::string& model) {
  Harness harness(
      {.model_path = model, .threads = 2, .capacity_tokens = 256, .longest_sequence = 128});
  harness.Form();
  harness.bulk.SetContent(golden.job.content,
                          AdapterContent(golden.folder + "/init", golden.job.name()));
  harness.Load(golden.job);
  REQUIRE(harness.slot_failed().empty());
  double moved = 0;
  for (size_t t = 0; t < 4; ++t) {
    harness.Step({&golden.job});
    const double loss = golden.expected.at("loss")[t];
    moved = std::max(moved, std::abs(harness.steps(golden.job.name())[t].loss() - loss) / loss);
  }
  return moved;
}

TEST_CASE("a reference run notices the scale of each module") {
  for (const std::string run : {"qwen3/patterns", "qwen3/all_linear", "qwen3/regex"}) {
    const int modules = ReadGoldenJob(run).job.spec.modules_size();
    REQUIRE(modules > 0);
    for (int i = 0; i < modules; ++i) {
      GoldenJob golden = ReadGoldenJob(run);
      v1::SlotSpec::Modules& changed = *golden.job.spec.mutable_modules(i);
      changed.set_scale(1.25 * changed.scale());
      const double moved = Moved(golden, kGoldenFolder + std::string("qwen3/model"));
      INFO(run << ": the scale of " << changed.target() << " moves a loss by " << moved);
      CHECK(moved > kMovedLeast);
    }
  }
}

TEST_CASE("a reference run notices each feature that is changed") {
  for (const Change& change : kChanges) {
    const double moved =
        Moved(ReadGoldenJob(std::string(change.model) + "/r4_all"), Changed(change));
    INFO(change.model << ": " << change.what << " moves a loss by " << moved);
    CHECK(moved > kMovedLeast);
  }
}

}  // namespace
}  // namespace lorad::worker
