#include "kernels/cuda/optimizer_tables.h"

#include <cassert>
#include <cmath>

namespace lorad::kernels::cuda {
namespace {

double BiasCorrection(double beta, int64_t step) {
  return 1 - std::pow(beta, static_cast<double>(step));
}

OptimizerEntry EntryOf(const OptimizerTensor& tensor, double bias1, int64_t first_block) {
  OptimizerEntry entry = {
      .parameter = tensor.parameter,
      .exp_avg = tensor.exp_avg,
      .exp_avg_sq = tensor.exp_avg_sq,
      .gradient = tensor.gradient,
      .elements = tensor.elements,
      .first_block = first_block,
      .columns = static_cast<int32_t>(tensor.columns),
      .decay = static_cast<float>(1 - tensor.learning_rate * tensor.weight_decay),
      .step_size = static_cast<float>(tensor.learning_rate / bias1)};
  if (!tensor.copy.empty()) {
    assert(tensor.columns > 0 && tensor.elements % tensor.columns == 0);
    assert(tensor.copy.rows * tensor.columns >= tensor.elements);
    assert(tensor.copy.columns >= tensor.columns);
    entry.copy = tensor.copy.data;
    entry.copy_stride = static_cast<int32_t>(tensor.copy.row_stride);
    entry.copy_is_bfloat16 = tensor.copy.dtype == DType::kBfloat16 ? 1 : 0;
  }
  return entry;
}

}  // namespace

AdamWStep StepOf(const AdamWOptions& options) {
  assert(options.step >= 1);
  return {.clip_factor = static_cast<float>(options.clip_factor),
          .one_minus_beta1 = static_cast<float>(1 - options.beta1),
          .beta2 = static_cast<float>(options.beta2),
          .one_minus_beta2 = static_cast<float>(1 - options.beta2),
          .sqrt_bias2 = static_cast<float>(std::sqrt(BiasCorrection(options.beta2, options.step))),
          .eps = static_cast<float>(options.eps)};
}

OptimizerTables::OptimizerTables(TablePool& pool, std::span<const OptimizerTensor> tensors,
                                 const AdamWOptions& options, bool with_sums) {
  const int64_t count = static_cast<int64_t>(tensors.size());
  for (const OptimizerTensor& tensor : tensors) table.blocks += OptimizerBlocks(tensor.elements);
  TableLayout layout;
  const int64_t entries_at = layout.Add<OptimizerEntry>(count);
  const int64_t uploaded = layout.bytes();
  const int64_t sums_at = layout.Add<double>(with_sums ? count + 1 : 0);
  const int64_t partials_at = layout.Add<double>(with_sums ? table.blocks : 0);
  memory = pool.Take(layout.bytes());
  OptimizerEntry* entries = memory.Host<OptimizerEntry>(entries_at);
  const double bias1 = BiasCorrection(options.beta1, options.step);
  int64_t first_block = 0;
  for (const OptimizerTensor& tensor : tensors) {
    *entries++ = EntryOf(tensor, bias1, first_block);
    first_block += OptimizerBlocks(tensor.elements);
  }
  memory.Upload(uploaded);
  table.entries = memory.Device<OptimizerEntry>(entries_at);
  table.count = static_cast<int32_t>(count);
  sums = memory.Device<double>(sums_at);
  total = sums + count;
  partials = memory.Device<double>(partials_at);
}

}  // namespace lorad::kernels::cuda
