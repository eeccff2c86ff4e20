#include <algorithm>
#include <cassert>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

// An item is a tile of the vocabulary, through which the rows pass one by one: W comes from memory
// once, and a row's product has the same shape whoever is beside it, so it has the same bits.
namespace lorad::kernels::cpu {

void Logits(const Context& context, const CpuBatch& batch, const TensorView& x,
            std::span<const int32_t> rows, const CpuLinear& head, float cap, const TensorView& z) {
  const TensorView& weight = head.weight;  // [V, H]
  const int64_t hidden = weight.columns;
  const int64_t vocabulary = weight.rows;
  const auto count = static_cast<int64_t>(rows.size());
  if (count == 0) return;
  assert(HasShape(x, batch.tokens(), hidden) && HasShape(z, count, vocabulary) && !head.has_bias);
  for (const int32_t row : rows) assert(row >= 0 && row < batch.tokens());

  const int64_t tiles = (vocabulary + kVocabularyTile - 1) / kVocabularyTile;
  context.pool.Run(tiles, [&](int64_t item, int) {
    const int64_t first = item * kVocabularyTile;
    const int64_t width = std::min(kVocabularyTile, vocabulary - first);
    for (int64_t i = 0; i < count; ++i) {
      float* scores = z.row(i) + first;
      MultiplyNT(1, width, hidden, 1.0f, x.row(rows[static_cast<size_t>(i)]), x.row_stride,
                 weight.row(first), weight.row_stride, 0.0f, scores, width);
      if (cap != 0) context.loops.soft_cap(scores, 1.0f, cap, width);
    }
  });
}

}  // namespace lorad::kernels::cpu
