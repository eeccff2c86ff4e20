#include "storage/models/model_description.h"

#include <algorithm>

namespace lorad::storage {

int64_t LinearGroup::out_features() const {
  int64_t sum = 0;
  for (const LinearPart& part : parts) sum += part.out_features;
  return sum;
}

int64_t LongRopeBorder(const ModelDescription& description) {
  for (const Block& block : description.blocks) {
    const auto* attention = std::get_if<AttentionSpec>(&block.mixer);
    if (attention != nullptr && !attention->rope.long_frequencies.empty()) {
      return attention->rope.original_positions;
    }
  }
  return 0;
}

std::vector<NormSpec> AllNorms(const ModelDescription& description) {
  std::vector<NormSpec> norms = {description.final_norm};
  for (const Block& block : description.blocks) {
    for (const std::optional<NormSpec>* norm : {&block.norm, &block.out_norm}) {
      if (norm->has_value()) norms.push_back(**norm);
    }
    const auto* attention = std::get_if<AttentionSpec>(&block.mixer);
    if (attention == nullptr || !attention->qk_norm) continue;
    norms.push_back(attention->qk_norm->q);
    norms.push_back(attention->qk_norm->k);
  }
  return norms;
}

std::vector<NamedShape> AllTensors(const ModelDescription& description) {
  std::vector<NamedShape> tensors = {
      {description.embedding_tensor, {description.vocabulary, description.hidden}}};
  if (!description.tied_head) {
    tensors.push_back({description.head_tensor, {description.vocabulary, description.hidden}});
  }
  for (const NormSpec& norm : AllNorms(description)) tensors.push_back({norm.tensor, {norm.size}});
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        tensors.push_back({part.tensor, {part.out_features, group->in_features}});
        if (!part.bias.empty()) tensors.push_back({part.bias, {part.out_features}});
      }
    }
  }
  std::sort(tensors.begin(), tensors.end(),
            [](const NamedShape& a, const NamedShape& b) { return a.name < b.name; });
  return tensors;
}

std::vector<std::string> TargetModules(const ModelDescription& description) {
  std::vector<std::string> targets;
  for (const Block& block : description.blocks) {
    for (const LinearGroup* group : {&block.in, &block.out}) {
      for (const LinearPart& part : group->parts) {
        if (std::find(targets.begin(), targets.end(), part.target) == targets.end()) {
          targets.push_back(part.target);
        }
      }
    }
  }
  return targets;
}

int64_t ParameterCount(const ModelDescription& description) {
  int64_t count = 0;
  for (const NamedShape& tensor : AllTensors(description)) {
    int64_t elements = 1;
    for (const int64_t size : tensor.shape) elements *= size;
    count += elements;
  }
  return count;
}

}  // namespace lorad::storage
