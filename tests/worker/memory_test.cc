// What the planner estimates is what the engine's arenas hold, byte for byte.
#include "planner/cost/memory.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <limits>

#include "kernels/cpu/cpu_backend.h"
#include "server/core/catalog/model_shape.h"
#include "storage/models/model_description.h"
#include "tests/worker/rows.h"
#include "worker/engine/model.h"
#include "worker/engine/slot.h"

namespace lorad::worker {
namespace {

storage::ModelDescription Describe(const std::string& config) {
  const auto description = storage::DescribeModel(config);
  INFO(description.status().ToString());
  REQUIRE(description.ok());
  return *description;
}

// The golden models, of every family.
std::vector<storage::ModelDescription> GoldenModels() {
  std::vector<storage::ModelDescription> models;
  for (const auto& entry : std::filesystem::directory_iterator("tests/golden")) {
    const std::string config = entry.path().string() + "/model/config.json";
    if (std::filesystem::exists(config)) models.push_back(Describe(ReadFile(config)));
  }
  REQUIRE(models.size() >= 15);
  return models;
}

std::vector<storage::ModelDescription> Models() {
  std::vector<storage::ModelDescription> models = GoldenModels();
  for (const storage::ModelDescription& model : {
           // SmolLM2-135M; odd sizes so that every allocation is rounded.
           Describe(R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
        "hidden_act": "silu", "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000,
        "tie_word_embeddings": true, "vocab_size": 49152})"),
           Describe(R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
        "hidden_act": "silu", "hidden_size": 70, "intermediate_size": 99,
        "num_hidden_layers": 3, "num_attention_heads": 5, "num_key_value_heads": 1,
        "max_position_embeddings": 512, "rms_norm_eps": 1e-6, "rope_theta": 10000,
        "tie_word_embeddings": false, "vocab_size": 101})"),
       }) {
    models.push_back(model);
  }
  return models;
}

constexpr Recomputation kRecomputations[] = {Recomputation::kNothing, Recomputation::kProducts,
                                             Recomputation::kBlocks};

TEST_CASE("a group takes what the planner says") {
  struct Case {
    int64_t capacity_tokens;
    int64_t longest_sequence;
    int threads;
  };
  const Case cases[] = {{1, 1, 1}, {256, 256, 1}, {1024, 900, 2}, {1021, 77, 3}, {4096, 4096, 2}};
  for (const storage::ModelDescription& description : Models()) {
    const planner::ModelShape shape = server::ShapeOf(description);
    for (const Case& c : cases) {
      INFO(description.architecture << " " << description.hidden << ": " << c.capacity_tokens
                                    << " tokens, longest " << c.longest_sequence << ", "
                                    << c.threads << " threads");
      const auto backend = kernels::MakeCpuBackend(c.threads);
      int64_t before = std::numeric_limits<int64_t>::max();
      for (const Recomputation recomputation : kRecomputations) {
        INFO("computing " << ToText(recomputation) << " again");
        const int64_t counted =
            Model::CountBytes(backend.get(), description, WholeModel(description),
                              {.capacity_tokens = c.capacity_tokens,
                               .longest_sequence = c.longest_sequence,
                               .recomputation = recomputation});
        const planner::GroupBytes planned =
            planner::BytesOfGroup(shape, {.capacity_tokens = c.capacity_tokens,
                                          .longest_sequence = c.longest_sequence,
                                          .device = {.threads = c.threads},
                                          .recomputation = recomputation});
        CHECK(planned.total() == counted);
        CHECK(counted < before);
        before = counted;
      }
    }
  }
}

// Every cut of a small model into a stage, in mid-layer too; a few of a large one.
std::vector<StageRange> RangesOf(const storage::ModelDescription& description) {
  const auto blocks = static_cast<int32_t>(description.blocks.size());
  std::vector<StageRange> ranges;
  for (int32_t first = 0; first < blocks; ++first) {
    for (int32_t end = first + 1; end <= blocks; ++end) {
      if (blocks <= 8 || (first % 13 == 0 && (end % 17 == 0 || end == blocks))) {
        ranges.push_back({first, end});
      }
    }
  }
  return ranges;
}

TEST_CASE("a stage takes what the planner says, whatever its range and what is in flight") {
  const auto backend = kernels::MakeCpuBackend(2);
  for (const storage::ModelDescription& description : Models()) {
    const planner::ModelShape shape = server::ShapeOf(description);
    for (const StageRange& range : RangesOf(description)) {
      for (const Recomputation recomputation : kRecomputations) {
        for (const int in_flight : {1, 2, 5}) {
          INFO(description.architecture << " " << description.hidden << ": blocks "
                                        << range.first_block << " to " << range.end_block << ", "
                                        << in_flight << " in flight, computing "
                                        << ToText(recomputation) << " again");
          const GroupShape group{.capacity_tokens = 1021,
                                 .longest_sequence = 77,
                                 .device = {.threads = 2},
                                 .recomputation = recomputation,
                                 .in_flight = in_flight};
          CHECK(planner::BytesOfGroup(shape, group, range).total() ==
                Model::CountBytes(backend.get(), description, range, group));
        }
      }
      SlotOptions options;
      const std::vector<std::string> targets = storage::TargetModules(description);
      for (const std::string& target : targets) options.modules.push_back({target, {}, 13});
      const auto tensors = ListLoraTensors(description, range, options);
      REQUIRE(tensors.ok());
      CHECK(planner::BytesOfSlot(shape, {13, targets}, {}, range).total() ==
            Slot::BudgetBytes(*backend, *tensors));
    }
  }
}

TEST_CASE("a slot takes what the planner says") {
  const std::vector<std::vector<std::string>> targets = {
      {"q_proj", "v_proj"},
      {"down_proj"},
      {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
      {"qkv_proj", "o_proj", "gate_up_proj"}};
  const auto backend = kernels::MakeCpuBackend(1);
  for (const storage::ModelDescription& description : Models()) {
    const planner::ModelShape shape = server::ShapeOf(description);
    for (const int rank : {1, 4, 13, 64, 512}) {
      for (const std::vector<std::string>& names : targets) {
        const std::vector<std::string> known = storage::TargetModules(description);
        if (std::find(known.begin(), known.end(), names[0]) == known.end()) continue;
        INFO(description.architecture << " " << description.hidden << ": rank " << rank << ", "
                                      << names.size() << " targets");
        SlotOptions options;
        for (const std::string& name : names) options.modules.push_back({name, {}, rank});
        planner::AdapterShape adapter(rank, names);
        adapter.trains = false;
        options.answers_only = true;
        auto tensors = ListLoraTensors(description, WholeModel(description), options);
        REQUIRE(tensors.ok());
        CHECK(planner::BytesOfSlot(shape, adapter).total() ==
              Slot::BudgetBytes(*backend, *tensors));
        options.answers_only = false;
        tensors = ListLoraTensors(description, WholeModel(description), options);
        REQUIRE(tensors.ok());
        CHECK(planner::BytesOfSlot(shape, {rank, names}).total() ==
              Slot::BudgetBytes(*backend, *tensors));
        int64_t parameters = 0;
        for (const SlotTensor& tensor : *tensors) parameters += tensor.elements();
        CHECK(planner::AdapterParameters(shape, {rank, names}) == parameters);
      }
    }
  }
}

TEST_CASE("a slot with patterns takes what the planner says") {
  const auto backend = kernels::MakeCpuBackend(1);
  for (const storage::ModelDescription& description : Models()) {
    const planner::ModelShape shape = server::ShapeOf(description);
    const std::vector<std::string> known = storage::TargetModules(description);
    INFO(description.architecture << " " << description.hidden);
    SlotOptions options;
    options.modules = {{known[0], {0}, 3}, {known[0], {1, 2}, 17}, {"down_proj", {}, 64}};
    planner::AdapterShape adapter;
    adapter.parts = {{known[0], 3, 1}, {known[0], 17, 2}, {"down_proj", 64}};
    const auto tensors = ListLoraTensors(description, WholeModel(description), options);
    REQUIRE(tensors.status().message() == "");
    CHECK(planner::BytesOfSlot(shape, adapter).total() == Slot::BudgetBytes(*backend, *tensors));
    CHECK(planner::BytesOfSlot(shape, adapter).total() <
          planner::BytesOfSlot(shape, {64, {known[0], "down_proj"}}).total());
  }
}

}  // namespace
}  // namespace lorad::worker
