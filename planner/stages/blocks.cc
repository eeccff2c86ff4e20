#include "planner/stages/blocks.h"

#include <algorithm>
#include <numeric>

namespace lorad::planner {
namespace {

constexpr double kForwardAndBackward = 2;
constexpr double kAttentionForwardAndBackward = 3.5;

double Parameters(const ModelShape::Group& group) {
  double features = 0;
  for (const ModelShape::Part& part : group.parts) {
    features += static_cast<double>(part.out_features);
  }
  return features * static_cast<double>(group.in_features);
}

}  // namespace

std::vector<double> FlopsOfBlocks(const ModelShape& model, int64_t length) {
  const auto heads = static_cast<double>(model.heads * model.head_size);
  const double attention =
      kForwardAndBackward * 2 * (Parameters(model.groups[0]) + Parameters(model.groups[1])) +
      kAttentionForwardAndBackward * 2 * heads * static_cast<double>(length);
  const double mlp =
      kForwardAndBackward * 2 * (Parameters(model.groups[2]) + Parameters(model.groups[3]));
  std::vector<double> flops;
  for (int64_t layer = 0; layer < model.layers; ++layer) {
    flops.push_back(attention);
    flops.push_back(mlp);
  }
  flops.back() += kForwardAndBackward * 2 * static_cast<double>(model.hidden * model.vocabulary);
  return flops;
}

double SlowestShare(const ModelShape& model, const std::vector<StageRange>& ranges,
                    int64_t length) {
  const std::vector<double> flops = FlopsOfBlocks(model, length);
  double slowest = 0, all = 0;
  for (const StageRange& range : ranges) {
    const double stage =
        std::accumulate(flops.begin() + range.first_block, flops.begin() + range.end_block, 0.0);
    slowest = std::max(slowest, stage);
    all += stage;
  }
  return slowest / all;
}

}  // namespace lorad::planner
