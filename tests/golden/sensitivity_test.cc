// That the reference runs can fail: with one feature of a model or of a job changed, a loss of the
// run lies over ten times the tolerance from PEFT's.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "storage/models/model_description.h"
#include "tests/golden/golden_run.h"
#include "worker/engine/model_files.h"

namespace lorad::worker {
namespace {

// Such a change must move a loss by more.
constexpr double kMovedLeast = 10 * kLossTolerance;

using storage::Block;
using storage::ModelDescription;

// Two parts of a tensor in each other's place, from the middle of it on or all of it.
struct Swap {
  const char* tensor;  // the end of its name
  bool second_half;
};

// Of one feature, in one of the ways.
struct Change {
  const char* run;
  const char* what;
  const char* patch = "{}";  // merged into config.json
  void (*describe)(ModelDescription&) = nullptr;
  void (*order)(TestJob&) = nullptr;
  std::optional<Swap> swap = {};
};

template <class Function>
void ForAttention(ModelDescription& model, Function change) {
  for (Block& block : model.blocks) {
    if (auto* attention = std::get_if<storage::AttentionSpec>(&block.mixer)) change(*attention);
  }
}

void LeaveQkNormsOut(ModelDescription& model) {
  ForAttention(model, [](auto& attention) { attention.qk_norm.reset(); });
}
void SwapQkNorms(ModelDescription& model) {
  ForAttention(model,
               [](auto& attention) { std::swap(attention.qk_norm->q, attention.qk_norm->k); });
}

// Of attention, or of MLPs.
template <class Mixer, std::optional<storage::NormSpec> Block::*kNorm>
void LeaveNormsOut(ModelDescription& model) {
  for (Block& block : model.blocks) {
    if (std::holds_alternative<Mixer>(block.mixer)) (block.*kNorm).reset();
  }
}
void NormBeforeInsteadOfBehind(ModelDescription& model) {
  for (Block& block : model.blocks) block.norm = std::exchange(block.out_norm, std::nullopt);
}

// Weights of norms are what the files have.
void AddNothingToWeights(ModelDescription& model) {
  model.final_norm.offset = 0;
  for (Block& block : model.blocks) {
    for (auto* norm : {&block.norm, &block.out_norm}) {
      if (*norm) (*norm)->offset = 0;
    }
  }
  ForAttention(model, [](auto& attention) {
    if (attention.qk_norm) attention.qk_norm->q.offset = attention.qk_norm->k.offset = 0;
  });
}

void EmbedByOne(ModelDescription& model) { model.embedding_factor = 1; }
void TieHead(ModelDescription& model) {
  model.head_tensor = model.embedding_tensor;
  model.tied_head = true;
}

// OLMo 3's layers: sliding, full, sliding.
template <size_t kLayer>
void TurnAllLike(ModelDescription& model) {
  const auto rope = std::get<storage::AttentionSpec>(model.blocks[2 * kLayer].mixer).rope;
  ForAttention(model, [&](auto& attention) { attention.rope = rope; });
}

// 0: q, 1: k, 2: v.
template <size_t kPart>
void LeaveBiasOut(ModelDescription& model) {
  for (Block& block : model.blocks) {
    if (block.in.parts.size() == 3) block.in.parts[kPart].bias.clear();
  }
}

void ScaleByRank(TestJob& job) {
  job.spec.set_scale(job.spec.scale() / std::sqrt(job.spec.rank()));
}
void ClipNothing(TestJob& job) { job.spec.set_max_grad_norm(0); }
template <int kRatio>
void TakeRatio(TestJob& job) {
  job.spec.set_loraplus_lr_ratio(kRatio);
}

using storage::AttentionSpec;
using storage::GatedMlpSpec;
constexpr auto kNorm = &Block::norm;
constexpr auto kOutNorm = &Block::out_norm;

const Change kChanges[] = {
    {"qwen3/r4_all", "another theta", R"({"rope_parameters": {"rope_theta": 1100.0}})"},
    {"qwen3/r4_all", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"qwen3_yarn/r4_all", "factor left out", R"({"rope_parameters": {"factor": 1.0}})"},
    {"qwen3_yarn/r4_all", "attention_factor 1",
     R"({"rope_parameters": {"attention_factor": 1.0}})"},
    {"qwen3_yarn/r4_all", "another border of the blend",
     R"({"rope_parameters": {"beta_fast": 2.0}})"},
    {"mistral_window/r4_all", "window 17", R"({"sliding_window": 17})"},
    {"mistral_window/r4_all", "no window", R"({"sliding_window": null})"},
    {"gemma/r4_all", "SiLU", R"({"hidden_act": "silu"})"},
    {"gemma2/r4_all", "window 17", R"({"sliding_window": 17})"},
    {"gemma2/r4_all", "windows in the other layers",
     R"({"layer_types": ["full_attention", "sliding_attention", "full_attention"]})"},
    {"gemma2/r4_all", "query scale of the head size", R"({"query_pre_attn_scalar": 32})"},
    {"gemma2/r4_all", "no cap of scores", R"({"attn_logit_softcapping": null})"},
    {"gemma2/r4_all", "no cap of logits", R"({"final_logit_softcapping": null})"},
    {"gemma3/r4_all", "window 17", R"({"sliding_window": 17})"},
    {"gemma3/r4_all", "query scale of the head size", R"({"query_pre_attn_scalar": 32})"},
    {"gemma3/r4_all", "scaling left out",
     R"({"rope_parameters": {"full_attention": {"factor": 1.0}}})"},
    {"gemma3/r4_all", "one rope for all layers",
     R"({"rope_parameters": {"sliding_attention": {"rope_type": "linear", "factor": 4.0,
         "rope_theta": 100000.0}}})"},
    {"gemma3_tower/r4_all", "window 17", R"({"text_config": {"sliding_window": 17}})"},
    {"mistral3_tower/r4_all", "another theta",
     R"({"text_config": {"rope_parameters": {"rope_theta": 1100.0}}})"},
    {"phi3/r4_all", "all features turn",
     R"({"rope_parameters": {"partial_rotary_factor": 1.0, "rope_type": "default",
         "short_factor": null, "long_factor": null}, "partial_rotary_factor": null})"},
    {"phi3/r4_all", "short frequencies for long sequences",
     R"({"original_max_position_embeddings": 256,
         "rope_parameters": {"attention_factor": 1.1902380714238083}})"},
    {"phi3/r4_all", "the border one row later", R"({"original_max_position_embeddings": 33,
         "rope_parameters": {"attention_factor": 1.2649110640673518}})"},
    {"smollm3/r4_all", "rope in a layer without", R"({"no_rope_layers": [1, 1, 1]})"},
    {"olmo2/r4_all", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"olmo3/r4_all", "window 17", R"({"sliding_window": 17})"},
    {"olmo3/r4_all", "yarn left out",
     R"({"rope_parameters": {"full_attention": {"factor": 1.0, "attention_factor": 1.0}}})"},
    {"granite/r4_all", "embedding_multiplier left out", R"({"embedding_multiplier": 1.0})"},
    {"granite/r4_all", "residual_multiplier left out", R"({"residual_multiplier": 1.0})"},
    {"granite/r4_all", "attention_multiplier of the head size",
     R"({"attention_multiplier": 0.25})"},
    {"granite/r4_all", "logits_scaling left out", R"({"logits_scaling": 1.0})"},
    {"qwen3/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"qwen3/r4_all", "the norms of q and k in each other's place", "{}", SwapQkNorms},
    {"qwen3_yarn/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"gemma3/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"gemma3/r4_all", "the norms of q and k in each other's place", "{}", SwapQkNorms},
    {"gemma3_tower/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"olmo2/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"olmo3/r4_all", "no norms of q and k", "{}", LeaveQkNormsOut},
    {"gemma/r4_all", "weight instead of 1 + weight", "{}", AddNothingToWeights},
    {"gemma2/r4_all", "weight instead of 1 + weight", "{}", AddNothingToWeights},
    {"gemma3/r4_all", "weight instead of 1 + weight", "{}", AddNothingToWeights},
    {"gemma3_tower/r4_all", "weight instead of 1 + weight", "{}", AddNothingToWeights},
    {"gemma/r4_all", "the embedding's factor left out", "{}", EmbedByOne},
    {"gemma2/r4_all", "the embedding's factor left out", "{}", EmbedByOne},
    {"gemma3/r4_all", "the embedding's factor left out", "{}", EmbedByOne},
    {"gemma3_tower/r4_all", "the embedding's factor left out", "{}", EmbedByOne},
    {"gemma2/r4_all", "no norm before attention", "{}", LeaveNormsOut<AttentionSpec, kNorm>},
    {"gemma2/r4_all", "no norm behind attention", "{}", LeaveNormsOut<AttentionSpec, kOutNorm>},
    {"gemma2/r4_all", "no norm before MLPs", "{}", LeaveNormsOut<GatedMlpSpec, kNorm>},
    {"gemma2/r4_all", "no norm behind MLPs", "{}", LeaveNormsOut<GatedMlpSpec, kOutNorm>},
    {"gemma3/r4_all", "no norm behind attention", "{}", LeaveNormsOut<AttentionSpec, kOutNorm>},
    {"gemma3/r4_all", "no norm behind MLPs", "{}", LeaveNormsOut<GatedMlpSpec, kOutNorm>},
    {"olmo2/r4_all", "no norm behind attention", "{}", LeaveNormsOut<AttentionSpec, kOutNorm>},
    {"olmo2/r4_all", "no norm behind MLPs", "{}", LeaveNormsOut<GatedMlpSpec, kOutNorm>},
    {"olmo2/r4_all", "norms before instead of behind", "{}", NormBeforeInsteadOfBehind},
    {"olmo3/r4_all", "no norm behind attention", "{}", LeaveNormsOut<AttentionSpec, kOutNorm>},
    {"olmo3/r4_all", "no norm behind MLPs", "{}", LeaveNormsOut<GatedMlpSpec, kOutNorm>},
    {"olmo3/r4_all", "norms before instead of behind", "{}", NormBeforeInsteadOfBehind},
    {"olmo3/r4_all", "the rope of sliding layers everywhere", "{}", TurnAllLike<0>},
    {"olmo3/r4_all", "the rope of full layers everywhere", "{}", TurnAllLike<1>},
    {"mistral3_tower/r4_all", "the embedding as head", "{}", TieHead},
    {"mistral_window/r4_all", "the embedding as head", "{}", TieHead},
    {"phi3/r4_all", "k behind v", "{}", nullptr, nullptr, Swap{".qkv_proj.weight", true}},
    {"phi3/r4_all", "gate behind up", "{}", nullptr, nullptr, Swap{".gate_up_proj.weight", false}},
    {"llama_gqa_untied/r8_all", "the embedding as head", "{}", TieHead},
    {"llama_gqa_untied/r8_all", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"llama_gqa_untied/r8_all", "GELU", R"({"hidden_act": "gelu_pytorch_tanh"})"},
    {"llama_gqa_untied/r8_all", "no norm before attention", "{}",
     LeaveNormsOut<AttentionSpec, kNorm>},
    {"llama_gqa_untied/r4_qv_rslora", "LoRA's scale instead of rsLoRA's", "{}", nullptr,
     ScaleByRank},
    {"llama_gqa_untied/r4_qv_rslora", "no clipping", "{}", nullptr, ClipNothing},
    {"qwen2_bias_tied/r16_attn", "no bias of q", "{}", LeaveBiasOut<0>},
    {"qwen2_bias_tied/r16_attn", "no bias of k", "{}", LeaveBiasOut<1>},
    {"qwen2_bias_tied/r16_attn", "no bias of v", "{}", LeaveBiasOut<2>},
    {"qwen2_bias_tied/r8_mlp", "no bias of v", "{}", LeaveBiasOut<2>},
    {"qwen2_bias_tied/r8_mlp", "another eps of norms", R"({"rms_norm_eps": 0.01})"},
    {"qwen3/r4_loraplus", "one rate for A and B", "{}", nullptr, TakeRatio<1>},
    {"qwen3/r4_loraplus", "half the ratio", "{}", nullptr, TakeRatio<8>},
};

std::string ModelOf(const Change& change) {
  return kGoldenFolder + std::string(change.run, std::strchr(change.run, '/')) + "/model";
}

// safetensors: the header's length in 8 bytes, the header, then where it says the tensors.
void SwapParts(const Swap& swap, std::string* file) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file->data(), sizeof(header_bytes));
  const auto tensors = file->begin() + 8 + static_cast<int64_t>(header_bytes);
  int swapped = 0;
  const auto header = nlohmann::json::parse(file->begin() + 8, tensors);
  for (const auto& [name, tensor] : header.items()) {
    if (!name.ends_with(swap.tensor)) continue;
    int64_t begin = tensor.at("data_offsets")[0];
    const int64_t end = tensor.at("data_offsets")[1];
    if (swap.second_half) begin += (end - begin) / 2;
    const auto middle = tensors + (begin + end) / 2;
    std::swap_ranges(tensors + begin, middle, middle);
    ++swapped;
  }
  REQUIRE(swapped > 0);
}

// A copy of the golden model with its config and its weights changed.
std::string Changed(const Change& change) {
  const auto folder = std::filesystem::temp_directory_path() / "changed_golden_model";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  const std::filesystem::path from = ModelOf(change);
  nlohmann::json config = nlohmann::json::parse(ReadFile(from / "config.json"));
  config.merge_patch(nlohmann::json::parse(change.patch));
  std::ofstream(folder / "config.json") << config;
  std::string weights = ReadFile(from / "model.safetensors");
  if (change.swap) SwapParts(*change.swap, &weights);
  std::ofstream(folder / "model.safetensors", std::ios::binary) << weights;
  return folder;
}

// A model's files, read by another description.
class ChangedFiles final : public ModelFiles {
 public:
  explicit ChangedFiles(void (*change)(ModelDescription&)) : change_(change) {}
  absl::StatusOr<storage::ModelDirectory> Open(const v1::FormGroup& order,
                                               const EngineContext& context) override {
    auto directory = ModelFiles::Open(order, context);
    if (!directory.ok() || change_ == nullptr) return directory;
    ModelDescription description = directory->description();
    change_(description);
    return (*std::move(directory)).As(std::move(description));
  }

 private:
  void (*const change_)(ModelDescription&);
};

// The largest relative difference of a loss of four steps from the run's.
double Moved(GoldenJob golden, const std::string& model,
             void (*describe)(ModelDescription&) = nullptr) {
  Harness harness({.model_path = model,
                   .threads = 2,
                   .capacity_tokens = 256,
                   .longest_sequence = 128,
                   .model_files = std::make_shared<ChangedFiles>(describe)});
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
    GoldenJob golden = ReadGoldenJob(change.run);
    if (change.order) change.order(golden.job);
    const double moved = Moved(std::move(golden), Changed(change), change.describe);
    INFO(change.run << ": " << change.what << " moves a loss by " << moved);
    CHECK(moved > kMovedLeast);
  }
}

}  // namespace
}  // namespace lorad::worker
