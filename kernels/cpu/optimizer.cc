#include <cassert>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/philox.h"

namespace lorad::kernels::cpu {
namespace {

constexpr int64_t kBlock = 4096;  // elements of one item; the leaves of the sum's tree

struct Block {
  size_t tensor;
  int64_t first;
  int64_t count;
};

std::vector<Block> Blocks(std::span<const OptimizerTensor> tensors) {
  std::vector<Block> blocks;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    for (int64_t first = 0; first < tensors[tensor].elements; first += kBlock) {
      blocks.push_back({tensor, first, std::min(kBlock, tensors[tensor].elements - first)});
    }
  }
  return blocks;
}

// Halves of a power of two: the shape depends on the count alone.
double TreeSum(std::span<const double> values) {
  if (values.empty()) return 0;
  if (values.size() == 1) return values[0];
  size_t half = 1;
  while (half * 2 < values.size()) half *= 2;
  return TreeSum(values.first(half)) + TreeSum(values.subspan(half));
}

}  // namespace

void InitializeA(const Context& context, uint64_t seed, int32_t layer, int32_t target,
                 const TensorView& a) {
  assert(HasShape(a, a.rows, a.columns) && a.row_stride == a.columns);
  assert(layer >= 0 && layer < kLayersMax && target >= 0 && target < kTargetsMax);
  const float bound = 1.0f / std::sqrt(static_cast<float>(a.columns));
  constexpr int64_t kWords = 4;
  const int64_t blocks = (a.elements() + kWords - 1) / kWords;
  ForRows(context, blocks, [&](int64_t block) {
    const PhiloxCounter random =
        Philox(seed, {{DropoutWord(static_cast<uint32_t>(layer), static_cast<uint32_t>(target),
                                   static_cast<uint32_t>(block & 0xFFFF)),
                       static_cast<uint32_t>(block >> 16), 0, kInitializationStep}});
    for (int64_t i = 0; i < kWords && block * kWords + i < a.elements(); ++i) {
      const float uniform = static_cast<float>(random.word[i] >> 8) * 0x1p-24f;  // in [0, 1)
      a.f32()[block * kWords + i] = bound * (2.0f * uniform - 1.0f);
    }
  });
}

void SumsOfSquares(const Context& context, std::span<const OptimizerTensor> tensors, double* sums) {
  const std::vector<Block> blocks = Blocks(tensors);
  std::vector<double> partial(blocks.size());
  context.pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t index, int) {
    const Block& block = blocks[static_cast<size_t>(index)];
    bool finite = true;
    const double sum = context.loops.sum_of_squares(tensors[block.tensor].gradient + block.first,
                                                    block.count, &finite);
    partial[static_cast<size_t>(index)] = finite ? sum : std::numeric_limits<double>::infinity();
  });
  size_t begin = 0;
  for (size_t tensor = 0; tensor < tensors.size(); ++tensor) {
    size_t end = begin;
    while (end < blocks.size() && blocks[end].tensor == tensor) ++end;
    sums[tensor] = TreeSum(std::span(partial).subspan(begin, end - begin));
    begin = end;
  }
}

// One after the other.
double FoldSums(std::span<const double> sums) {
  return std::accumulate(sums.begin(), sums.end(), 0.0);
}

void AdamW(const Context& context, const AdamWOptions& options,
           std::span<const OptimizerTensor> tensors) {
  assert(options.step >= 1);
  const double step = static_cast<double>(options.step);
  const double bias1 = 1 - std::pow(options.beta1, step);
  const double bias2 = 1 - std::pow(options.beta2, step);
  const std::vector<Block> blocks = Blocks(tensors);
  context.pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t index, int) {
    const Block& block = blocks[static_cast<size_t>(index)];
    const OptimizerTensor& tensor = tensors[block.tensor];
    assert(tensor.copy.empty());
    const double learning_rate = options.learning_rate * tensor.learning_rate_factor;
    const AdamWConstants constants = {
        .clip_factor = static_cast<float>(options.clip_factor),
        .decay = static_cast<float>(1 - learning_rate * tensor.weight_decay),
        .one_minus_beta1 = static_cast<float>(1 - options.beta1),
        .beta2 = static_cast<float>(options.beta2),
        .one_minus_beta2 = static_cast<float>(1 - options.beta2),
        .sqrt_bias2 = static_cast<float>(std::sqrt(bias2)),
        .eps = static_cast<float>(options.eps),
        .step_size = static_cast<float>(learning_rate / bias1)};
    context.loops.adamw(constants, tensor.parameter + block.first, tensor.exp_avg + block.first,
                        tensor.exp_avg_sq + block.first, tensor.gradient + block.first,
                        block.count);
  });
}

void DropGradients(const Context& context, std::span<const OptimizerTensor> tensors) {
  const std::vector<Block> blocks = Blocks(tensors);
  context.pool.Run(static_cast<int64_t>(blocks.size()), [&](int64_t index, int) {
    const Block& block = blocks[static_cast<size_t>(index)];
    std::memset(tensors[block.tensor].gradient + block.first, 0,
                static_cast<size_t>(block.count) * sizeof(int64_t));
  });
}

}  // namespace lorad::kernels::cpu
