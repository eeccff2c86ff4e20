// Any bytes as an adapter: the text before the first zero byte is adapter_config.json, the rest
// adapter_model.safetensors. Refused, or what was read is written, read again, and the same.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "storage/adapters/peft.h"
#include "storage/models/model_description.h"

namespace {

constexpr char kModel[] = R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8,
    "intermediate_size": 12, "max_position_embeddings": 64, "num_attention_heads": 2,
    "num_hidden_layers": 1, "rms_norm_eps": 1e-06, "vocab_size": 16})";

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lorad::storage;
  static const ModelDescription* const model = new ModelDescription(DescribeModel(kModel).value());
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const std::string_view text = bytes.substr(0, bytes.find('\0'));
  const auto config = ParsePeftConfig(text);
  if (!config.ok()) return 0;
  const auto again = ParsePeftConfig(WritePeftConfig(*config));
  assert(again.ok());
  assert(again->rank == config->rank && again->alpha == config->alpha);
  assert(again->rslora == config->rslora && again->target_modules == config->target_modules);
  assert(again->exclude_modules == config->exclude_modules);
  assert(again->layers_to_transform == config->layers_to_transform);
  assert(again->rank_pattern == config->rank_pattern);
  assert(again->alpha_pattern == config->alpha_pattern);
  const auto targets = ResolveTargets(*config, *model);
  assert(!targets.modules.empty() || !targets.problems.empty());
  assert(PeftTensors(targets.modules).size() == 2 * targets.modules.size());

  if (text.size() == bytes.size()) return 0;
  const std::string_view file = bytes.substr(text.size() + 1);
  if (!SafetensorsPrefixBytes(file, file.size()).ok()) return 0;
  const auto header = ParseSafetensorsHeader(file, file.size());
  if (!header.ok()) return 0;
  const auto modules = CheckAdapterTensors(*config, *header);
  if (modules.ok()) assert(header->tensors.size() % 2 == 0 && !modules->empty());
  return 0;
}
