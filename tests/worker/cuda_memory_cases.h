// Groups and slots on a GPU: what the planner says that they take, against what a backend takes of
// counting arenas.
#pragma once

#include <catch2/catch.hpp>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "planner/cost/memory.h"
#include "server/core/catalog/model_shape.h"
#include "storage/models/model_description.h"
#include "tests/storage/published_configs.h"
#include "worker/engine/model.h"
#include "worker/engine/slot.h"

namespace lorad::worker {

inline storage::ModelDescription Describe(const std::string& sizes, const std::string& family,
                                          const std::string& architecture) {
  const auto description = storage::DescribeModel(
      R"({"hidden_act": "silu", "rope_theta": 10000, "rms_norm_eps": 1e-5, "model_type": ")" +
      family + R"(", "architectures": [")" + architecture + "\"], " + sizes + "}");
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *description;
}

inline storage::ModelDescription Described(const std::string& config) {
  const auto description = storage::DescribeModel(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *description;
}

// As its makers say how to read 131,072 tokens with it.
inline storage::ModelDescription WithYarn(const std::string& config) {
  nlohmann::json json = nlohmann::json::parse(config);
  json["rope_scaling"] = {
      {"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  return Described(json.dump());
}

inline std::vector<storage::ModelDescription> Models() {
  return {
      Described(storage::kQwen3_8b),
      Described(storage::kGemma3_12b),
      Described(storage::kPhi4),
      Described(storage::kGemma2_2b),
      Described(storage::kOlmo2_7b),
      Described(storage::kSmolLm3_3b),
      Described(storage::kGranite33_8b),
      Described(storage::kGemma_7b),
      Described(storage::kMistral_7b_v01),
      Described(storage::kPhi35_mini),
      Described(storage::kPhi4_mini),
      Described(storage::kOlmo3_7b),
      Described(storage::kMistral3_24b),
      WithYarn(storage::kQwen3_8b),
      // TinyLlama-1.1B, Qwen2.5-3B, Llama-3.1-8B, SmolLM2-135M, and heads that cuDNN alone takes.
      Describe(R"("hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22,
        "num_attention_heads": 32, "num_key_value_heads": 4, "vocab_size": 32000,
        "max_position_embeddings": 2048, "tie_word_embeddings": false)",
               "llama", "LlamaForCausalLM"),
      Describe(R"("hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 2, "vocab_size": 151936,
        "max_position_embeddings": 32768, "tie_word_embeddings": true)",
               "qwen2", "Qwen2ForCausalLM"),
      Describe(R"("hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256,
        "max_position_embeddings": 131072, "tie_word_embeddings": false)",
               "llama", "LlamaForCausalLM"),
      Describe(R"("hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152,
        "max_position_embeddings": 8192, "tie_word_embeddings": true)",
               "llama", "LlamaForCausalLM"),
      Describe(R"("hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 2,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32064,
        "max_position_embeddings": 4096, "tie_word_embeddings": false)",
               "llama", "LlamaForCausalLM"),
  };
}

// The first stage, one with two neighbours, and the last; with three microbatches in flight.
inline void CheckStages(kernels::Backend& backend, const storage::ModelDescription& description,
                        planner::GroupShape shape) {
  shape.in_flight = 3;
  const planner::ModelShape model = server::ShapeOf(description);
  const auto blocks = static_cast<int32_t>(description.blocks.size());
  for (const StageRange& range : {StageRange{0, 1}, {1, blocks - 1}, {blocks - 1, blocks}}) {
    INFO("blocks " << range.first_block << " to " << range.end_block);
    CHECK(planner::BytesOfGroup(model, shape, range).total() ==
          Model::CountBytes(&backend, description, range, shape) +
              Model::LandingBytes(backend, description, range, shape));
  }
}

inline void CheckCudaMemory(kernels::Backend& backend, int multiprocessors) {
  const planner::DeviceShape device{
      .kind = planner::DeviceKind::kCuda,
      .threads = 1,
      .multiprocessors = multiprocessors,
      .value_bytes = static_cast<int>(kernels::BytesOf(backend.activation_dtype()))};
  for (const storage::ModelDescription& description : Models()) {
    const planner::ModelShape model = server::ShapeOf(description);
    for (const int64_t tokens : {1024, 4096, 8192}) {
      // Beyond Phi's 4,096 positions longrope has a second table.
      for (const int64_t longest : {200, 1024, 5000}) {
        if (longest > tokens) continue;
        planner::GroupShape shape = planner::EmptyShape(device);
        shape.capacity_tokens = tokens;
        shape.longest_sequence = longest;
        for (const Recomputation recomputation :
             {Recomputation::kNothing, Recomputation::kProducts, Recomputation::kBlocks}) {
          shape.recomputation = recomputation;
          INFO("hidden " << description.hidden << ", " << tokens << " tokens, longest " << longest
                         << ", " << device.value_bytes << " bytes a value, computing "
                         << ToText(recomputation) << " again");
          CHECK(planner::BytesOfGroup(model, shape).total() ==
                Model::CountBytes(&backend, description, WholeModel(description), shape));
          CheckStages(backend, description, shape);
        }
      }
    }
    SlotOptions options;
    const std::string first = storage::TargetModules(description).front();
    options.modules = {{first, {0}, 13}, {"down_proj", {}, 64}};
    planner::AdapterShape adapter;
    adapter.parts = {{first, 13, 1}, {"down_proj", 64}};
    const auto tensors = ListLoraTensors(description, WholeModel(description), options);
    REQUIRE(tensors.ok());
    CHECK(planner::BytesOfSlot(model, adapter, device).total() ==
          Slot::BudgetBytes(backend, *tensors));
  }
}

}  // namespace lorad::worker
