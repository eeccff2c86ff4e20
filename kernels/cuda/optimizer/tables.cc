#include "kernels/cuda/optimizer/tables.h"

#include <algorithm>
#include <array>
#include <cassert>
#include <cmath>
#include <limits>

namespace lorad::kernels::cuda {
namespace {

constexpr int64_t kWordElements = 4;  // bfloat16 of a word of 8 bytes

double BiasCorrection(double beta, int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

bool InWords(const OptimizerTensor& tensor) {
  return tensor.copy.dtype == DType::kBfloat16 && tensor.columns % kWordElements == 0 &&
         tensor.copy.row_stride % kWordElements == 0 &&
         reinterpret_cast<uintptr_t>(tensor.copy.data) % 8 == 0;
}

OptimizerEntry EntryOf(const OptimizerTensor& tensor, int64_t first_block) {
  assert(tensor.elements <= std::numeric_limits<int32_t>::max());
  OptimizerEntry entry = {.parameter = tensor.parameter,
                          .exp_avg = tensor.exp_avg,
                          .exp_avg_sq = tensor.exp_avg_sq,
                          .gradient = tensor.gradient,
                          .learning_rate_factor = tensor.learning_rate_factor,
                          .weight_decay = tensor.weight_decay,
                          .elements = static_cast<int32_t>(tensor.elements),
                          .first_block = static_cast<int32_t>(first_block),
                          .columns = static_cast<int32_t>(tensor.columns)};
  if (!tensor.copy.empty()) {
    assert(tensor.columns > 0 && tensor.elements % tensor.columns == 0);
    assert(tensor.copy.rows * tensor.columns >= tensor.elements);
    assert(tensor.copy.columns >= tensor.columns);
    entry.copy = tensor.copy.data;
    entry.copy_stride = static_cast<int32_t>(tensor.copy.row_stride);
    entry.copy_is_bfloat16 = tensor.copy.dtype == DType::kBfloat16 ? 1 : 0;
    entry.copy_in_words = InWords(tensor) ? 1 : 0;
  }
  return entry;
}

}  // namespace

AdamWJob JobOf(const OptimizerTable& table, const AdamWOptions& options) {
  assert(options.step >= 1);
  return {.table = table,
          .learning_rate = options.learning_rate,
          .bias1 = BiasCorrection(options.beta1, options.step),
          .clip_factor = static_cast<float>(options.clip_factor),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .sqrt_bias2 = static_cast<float>(std::sqrt(BiasCorrection(options.beta2, options.step))),
          .eps = static_cast<float>(options.eps)};
}

double FoldSums(std::span<const double> sums) {
  constexpr size_t kLanes = 256;
  std::array<double, kLanes> lanes = {};
  for (size_t i = 0; i < sums.size(); ++i) lanes[i % kLanes] += sums[i];
  for (size_t width = kLanes / 2; width > 0; width /= 2) {
    for (size_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

OptimizerMemory::OptimizerMemory(TablePool& pool, std::span<const OptimizerTensor> tensors) {
  const int64_t count = static_cast<int64_t>(tensors.size());
  int64_t blocks = 0;
  for (const OptimizerTensor& tensor : tensors) blocks += OptimizerBlocks(tensor.elements);
  assert(blocks <= std::numeric_limits<int32_t>::max());
  TableLayout layout;
  const int64_t entries_at = layout.Add<OptimizerEntry>(count);
  const int64_t entry_of_block_at = layout.Add<int32_t>(blocks);
  const int64_t uploaded = layout.bytes();
  const int64_t partials_at = layout.Add<double>(blocks);
  memory = pool.Take(layout.bytes());
  OptimizerEntry* entries = memory.Host<OptimizerEntry>(entries_at);
  int32_t* entry_of_block = memory.Host<int32_t>(entry_of_block_at);
  int64_t first_block = 0;
  for (int64_t i = 0; i < count; ++i) {
    const OptimizerTensor& tensor = tensors[static_cast<size_t>(i)];
    entries[i] = EntryOf(tensor, first_block);
    const int64_t end = first_block + OptimizerBlocks(tensor.elements);
    std::fill(entry_of_block + first_block, entry_of_block + end, static_cast<int32_t>(i));
    first_block = end;
  }
  memory.Upload(uploaded);
  table = {.entries = memory.Device<OptimizerEntry>(entries_at),
           .entry_of_block = memory.Device<int32_t>(entry_of_block_at),
           .partials = memory.Device<double>(partials_at),
           .count = static_cast<int32_t>(count),
           .blocks = static_cast<int32_t>(blocks)};
}

}  // namespace lorad::kernels::cuda
