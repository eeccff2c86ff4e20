#include "server/core/catalog/model_shape.h"

#include <algorithm>
#include <variant>
#include <vector>

namespace lorad::server {
namespace {

planner::ModelShape::Group GroupOf(const storage::LinearGroup& group) {
  planner::ModelShape::Group shape;
  shape.in_features = group.in_features;
  for (const storage::LinearPart& part : group.parts) {
    shape.parts.push_back({part.target, part.out_features, !part.bias.empty()});
  }
  return shape;
}

// A table for each rope that a layer has, as the engine makes them.
void AddRopes(const storage::ModelDescription& description, planner::ModelShape* shape) {
  std::vector<const storage::RopeSpec*> seen;
  for (const storage::Block& block : description.blocks) {
    const auto* attention = std::get_if<storage::AttentionSpec>(&block.mixer);
    if (attention == nullptr || attention->rope.inverse_frequencies.empty()) continue;
    const storage::RopeSpec& rope = attention->rope;
    const auto same = [&rope](const storage::RopeSpec* other) { return *other == rope; };
    if (std::any_of(seen.begin(), seen.end(), same)) continue;
    seen.push_back(&rope);
    shape->ropes.push_back({.features = 2 * static_cast<int64_t>(rope.inverse_frequencies.size()),
                            .border = storage::LongRopeBorder(description)});
  }
}

}  // namespace

planner::ModelShape ShapeOf(const storage::ModelDescription& description) {
  planner::ModelShape shape;
  shape.layers = description.layers;
  shape.hidden = description.hidden;
  shape.vocabulary = description.vocabulary;
  shape.tied_head = description.tied_head;
  AddRopes(description, &shape);
  for (const storage::Block& block : description.blocks) {
    if (block.layer != 0) break;  // all layers are alike
    shape.in_norm = block.norm.has_value();
    shape.out_norm = block.out_norm.has_value();
    if (const auto* attention = std::get_if<storage::AttentionSpec>(&block.mixer)) {
      shape.heads = attention->heads;
      shape.kv_heads = attention->kv_heads;
      shape.head_size = attention->head_size;
      if (attention->qk_norm) {
        shape.q_norm = attention->qk_norm->q.size;
        shape.k_norm = attention->qk_norm->k.size;
      }
    } else if (const auto* mlp = std::get_if<storage::GatedMlpSpec>(&block.mixer)) {
      shape.ffn = mlp->ffn;
    }
    shape.groups.push_back(GroupOf(block.in));
    shape.groups.push_back(GroupOf(block.out));
  }
  return shape;
}

void SetShape(const planner::ModelShape& shape, v1::Model* model) {
  model->set_feed_forward_size(static_cast<int32_t>(shape.ffn));
  model->set_attention_heads(static_cast<int32_t>(shape.heads));
  model->set_key_value_heads(static_cast<int32_t>(shape.kv_heads));
  model->set_head_size(static_cast<int32_t>(shape.head_size));
  model->set_tied_head(shape.tied_head);
  model->set_attention_bias(!shape.groups.empty() && !shape.groups.front().parts.empty() &&
                            shape.groups.front().parts.front().bias);
  model->set_fused_projections(!shape.groups.empty() && shape.groups.front().parts.size() == 1);
  model->set_input_norms(shape.in_norm);
  model->set_output_norms(shape.out_norm);
  model->set_query_norm_size(static_cast<int32_t>(shape.q_norm));
  model->set_key_norm_size(static_cast<int32_t>(shape.k_norm));
  model->clear_ropes();
  for (const planner::ModelShape::RopeTable& table : shape.ropes) {
    v1::Model::Rope* rope = model->add_ropes();
    rope->set_features(static_cast<int32_t>(table.features));
    rope->set_border_tokens(table.border);
  }
}

planner::AdapterShape ShapeOfAdapter(const v1::AdapterConfig& adapter) {
  planner::AdapterShape shape;
  if (adapter.modules().empty()) {
    shape.parts.reserve(static_cast<size_t>(adapter.target_modules_size()));
    for (const std::string& target : adapter.target_modules()) {
      shape.parts.emplace_back(target, adapter.rank());
    }
    return shape;
  }
  for (const v1::AdapterModules& modules : adapter.modules()) {
    shape.parts.emplace_back(modules.target(), modules.rank(), modules.layers_size());
  }
  return shape;
}

planner::WorkModel WorkOf(const planner::ModelShape& shape, const planner::DeviceShape& device) {
  double layer_parameters = 0;
  for (const planner::ModelShape::Group& group : shape.groups) {
    for (const planner::ModelShape::Part& part : group.parts) {
      layer_parameters += static_cast<double>(group.in_features) * part.out_features;
    }
  }
  planner::WorkModel work;
  const double layers = static_cast<double>(shape.layers);
  work.flops_per_token =
      2 * (layers * layer_parameters + static_cast<double>(shape.hidden) * shape.vocabulary);
  work.flops_per_squared = 2 * layers * shape.heads * shape.head_size;
  work.flops_per_second = device.kind == planner::DeviceKind::kCuda
                              ? planner::kAssumedFlopsPerGpu
                              : planner::kAssumedFlopsPerThread * device.threads;
  return work;
}

planner::DeviceShape DeviceOf(const worker::v1::Hello& hello) {
  return {.kind = hello.device() == "cpu" ? planner::DeviceKind::kCpu : planner::DeviceKind::kCuda,
          .threads = std::max(hello.threads(), 1),
          .multiprocessors = hello.multiprocessors(),
          .value_bytes = hello.value_bytes() > 0 ? hello.value_bytes() : 4};
}

v1::Recomputation ToProto(planner::Recomputation recomputation) {
  switch (recomputation) {
    case planner::Recomputation::kNothing:
      return v1::RECOMPUTE_NOTHING;
    case planner::Recomputation::kProducts:
      return v1::RECOMPUTE_PRODUCTS;
    case planner::Recomputation::kBlocks:
      return v1::RECOMPUTE_BLOCKS;
  }
  return v1::RECOMPUTATION_UNSPECIFIED;
}

}  // namespace lorad::server
