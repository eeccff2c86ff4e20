// What the planner estimates for a GPU is what the engine's arenas take there, byte for byte. Skips
// where there is no GPU.
#include <catch2/catch.hpp>

#include "kernels/cuda/cuda_backend.h"
#include "kernels/cuda/device/device.h"
#include "planner/memory.h"
#include "server/core/model_shape.h"
#include "storage/model_description.h"
#include "worker/model.h"
#include "worker/slot.h"

namespace lorad::worker {
namespace {

using planner::DeviceKind;

storage::ModelDescription Describe(const std::string& sizes, const std::string& family,
                                   const std::string& architecture) {
  const auto description = storage::DescribeModel(
      R"({"hidden_act": "silu", "rope_theta": 10000, "rms_norm_eps": 1e-5, "model_type": ")" +
      family + R"(", "architectures": [")" + architecture + "\"], " + sizes + "}");
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *description;
}

std::vector<storage::ModelDescription> Models() {
  return {
      // TinyLlama-1.1B, Qwen2.5-3B, Llama-3.1-8B, SmolLM2-135M.
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
  };
}

TEST_CASE("a group and a slot on a GPU take what the planner says") {
  const auto facts = kernels::ProbeCudaDevice(0);
  if (!facts.ok()) {
    WARN("skipped: " << std::string(facts.status().message()));
    return;
  }
  for (const kernels::DType type : {kernels::DType::kBfloat16, kernels::DType::kFloat32}) {
    const auto backend = kernels::MakeCudaBackend(0, type);
    REQUIRE(backend.ok());
    const planner::DeviceShape device{.kind = DeviceKind::kCuda,
                                      .threads = 1,
                                      .multiprocessors = facts->multiprocessors,
                                      .value_bytes = static_cast<int>(kernels::BytesOf(type))};
    for (const storage::ModelDescription& description : Models()) {
      const planner::ModelShape model = server::ShapeOf(description);
      for (const int64_t tokens : {1024, 4096, 8192}) {
        for (const int64_t longest : {200, 1024}) {
          planner::GroupShape shape = planner::EmptyShape(device);
          REQUIRE(shape.recomputation == planner::Recomputation::kNothing);
          shape.capacity_tokens = tokens;
          shape.longest_sequence = longest;
          INFO("hidden " << description.hidden << ", " << tokens << " tokens, longest " << longest
                         << ", " << device.value_bytes << " bytes a value");
          CHECK(planner::BytesOfGroup(model, shape).total() ==
                Model::CountBytes(backend->get(), description, WholeModel(description),
                                  {.capacity_tokens = tokens,
                                   .longest_sequence = longest,
                                   .recomputation = Recomputation::kNothing,
                                   .rank_max = shape.rank_max,
                                   .slots_max = shape.slots_max}));
        }
      }
      SlotOptions options;
      options.rank = 13;
      options.target_modules = {"q_proj", "down_proj"};
      const auto tensors = ListLoraTensors(description, WholeModel(description), options);
      REQUIRE(tensors.ok());
      CHECK(planner::BytesOfSlot(model, {options.rank, options.target_modules}, device).total() ==
            Slot::BudgetBytes(**backend, *tensors));
    }
  }
}

}  // namespace
}  // namespace lorad::worker
