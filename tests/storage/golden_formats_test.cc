// Files that transformers and PEFT wrote (tests/golden), through our readers and writers.

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <tuple>
#include <vector>

#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "storage/models/model_directory.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

constexpr char kGolden[] = "tests/golden/";

std::string ReadFile(const std::string& path) {
  std::ostringstream bytes;
  bytes << std::ifstream(path, std::ios::binary).rdbuf();
  return bytes.str();
}

TEST_CASE("models written by transformers are read", "[golden]") {
  for (const std::string name : {"llama_gqa_untied", "qwen2_bias_tied"}) {
    INFO(name);
    const auto model = ModelDirectory::Open(kGolden + name + "/model");
    INFO(model.status());
    REQUIRE(model.ok());
    CHECK(model->description().layers == 3);
    CHECK(model->description().tied_head == (name == "qwen2_bias_tied"));
    for (const NamedShape& tensor : AllTensors(model->description())) {
      std::vector<float> values(384 * 64, -7.0f);
      REQUIRE(model->ReadTensor(tensor.name, values.data()).ok());
      CHECK(values[0] != -7.0f);
    }
  }
}

TEST_CASE("adapters written by PEFT are read, and written byte for byte", "[golden]") {
  const std::vector<std::pair<std::string, std::string>> adapters = {
      {"llama_gqa_untied", "r4_qv_rslora"},
      {"llama_gqa_untied", "r8_all"},
      {"qwen2_bias_tied", "r16_attn"},
      {"qwen2_bias_tied", "r8_mlp"},
      {"qwen3", "patterns"},
      {"qwen3", "all_linear"},
      {"qwen3", "regex"},
      {"phi3", "all_linear"}};
  for (const auto& [model_name, adapter_name] : adapters) {
    for (const std::string when : {"init", "final"}) {
      const std::string directory = kGolden + model_name + "/" + adapter_name + "/" + when;
      INFO(directory);
      const auto adapter = PeftAdapter::Open(directory);
      REQUIRE(adapter.ok());
      const auto model = ModelDirectory::Open(kGolden + model_name + "/model");
      REQUIRE(model.ok());
      CHECK(adapter->CheckFits(model->description()).ok());
      CHECK(adapter->CheckFinite().ok());

      // PEFT's lists of targets come from a set, in any order: ours are sorted.
      const auto again = ParsePeftConfig(WritePeftConfig(adapter->config()));
      REQUIRE(again.ok());
      CHECK(again->target_modules == adapter->config().target_modules);
      CHECK(again->target_regex == adapter->config().target_regex);
      CHECK(again->rank_pattern == adapter->config().rank_pattern);
      CHECK(again->alpha_pattern == adapter->config().alpha_pattern);
      CHECK(WritePeftConfig(*again).size() ==
            ReadFile(directory + "/adapter_config.json").size() + 1);

      std::vector<TensorEntry> entries;
      for (const TensorInfo& tensor : adapter->file().tensors()) {
        entries.push_back({tensor.name, tensor.type, tensor.shape});
      }
      const SafetensorsLayout layout(entries, adapter->file().header().metadata);
      std::string bytes;
      SafetensorsWriter writer(layout, [&bytes](std::string_view piece) {
        bytes += piece;
        return absl::OkStatus();
      });
      REQUIRE(writer.Start().ok());
      for (const TensorInfo& tensor : layout.tensors()) {
        const TensorInfo& found = *adapter->file().Find(tensor.name);
        REQUIRE(writer.Append(adapter->file().Read(found, 0, found.bytes()).value()).ok());
      }
      CHECK(bytes == ReadFile(directory + "/adapter_model.safetensors"));
    }
  }
}

TEST_CASE("what an adapter trained is known without its model") {
  const auto adapter = PeftAdapter::Open("tests/golden/qwen3/patterns/init");
  const auto model = ModelDirectory::Open("tests/golden/qwen3/model");
  REQUIRE(adapter.ok());
  REQUIRE(model.ok());
  auto expected = ResolveTargets(adapter->config(), model->description()).modules;
  std::ranges::sort(expected, {}, [](const auto& m) { return std::tie(m.layer, m.path); });
  const std::vector<TargetModule> trained = adapter->Trained();
  REQUIRE(trained.size() == expected.size());
  std::set<int> ranks;
  for (size_t i = 0; i < trained.size(); ++i) {
    INFO(expected[i].path);
    CHECK(trained[i].layer == expected[i].layer);
    CHECK(trained[i].path == expected[i].path);
    CHECK(trained[i].target == expected[i].target);
    CHECK(trained[i].in_features == expected[i].in_features);
    CHECK(trained[i].out_features == expected[i].out_features);
    CHECK(trained[i].rank == expected[i].rank);
    CHECK(trained[i].alpha == expected[i].alpha);
    ranks.insert(trained[i].rank);
  }
  CHECK(ranks.size() > 1);
}

}  // namespace
}  // namespace lorad::storage
