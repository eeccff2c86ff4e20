#include <cassert>
#include <cstring>
#include <vector>

#include "kernels/cpu/matmul.h"
#include "kernels/cpu/ops.h"

namespace lorad::kernels::cpu {
namespace {

// One segment's rows of one tensor's head.
struct Head {
  float* data;
  int64_t stride;

  float* row(int64_t index) const { return data + index * stride; }
};

Head HeadOf(const TensorView& view, const Segment& segment, int64_t head, int64_t head_size) {
  return {view.row(segment.first_row) + head * head_size, view.row_stride};
}

void CheckShapes(const CpuBatch& batch, const AttentionShape& shape, const TensorView& q,
                 const TensorView& k, const TensorView& v, const TensorView& out,
                 const TensorView& lse) {
  assert(shape.heads % shape.kv_heads == 0);
  assert(HasShape(q, batch.tokens(), shape.heads * shape.head_size));
  assert(HasShape(k, batch.tokens(), shape.kv_heads * shape.head_size));
  assert(HasShape(v, batch.tokens(), shape.kv_heads * shape.head_size));
  assert(HasShape(out, batch.tokens(), shape.heads * shape.head_size));
  assert(HasShape(lse, batch.tokens(), shape.heads));
}

// The first key that a query sees.
int64_t FirstKey(const AttentionShape& shape, int64_t query) {
  return shape.window == 0 ? 0 : std::max<int64_t>(query - shape.window + 1, 0);
}

// Clears what a row of scores [keys] has outside of [begin, end).
void ClearOutside(float* row, int64_t begin, int64_t end, int64_t keys) {
  std::memset(row, 0, static_cast<size_t>(begin) * sizeof(float));
  std::memset(row + end, 0, static_cast<size_t>(keys - end) * sizeof(float));
}

// Queries [first, first + rows) of one head of one segment. scores: [kAttentionRows, keys].
void ForwardBlock(const Context& context, const AttentionShape& shape, int64_t first, int64_t rows,
                  const Head& q, const Head& k, const Head& v, const Head& out, float* lse,
                  int64_t lse_stride, float* scores) {
  const int64_t low = FirstKey(shape, first);
  const int64_t keys = first + rows - low;
  const int64_t d = shape.head_size;
  MultiplyNT(rows, keys, d, 1.0f, q.row(first), q.stride, k.row(low), k.stride, 0.0f, scores, keys);
  for (int64_t row = 0; row < rows; ++row) {
    float* score = scores + row * keys;
    const int64_t begin = FirstKey(shape, first + row) - low;
    const int64_t end = first + row + 1 - low;
    float scale = shape.scale;
    if (shape.cap != 0) {
      context.loops.soft_cap(score + begin, shape.scale, shape.cap, end - begin);
      scale = 1;
    }
    lse[(first + row) * lse_stride] = context.loops.softmax(score + begin, scale, end - begin);
    ClearOutside(score, begin, end, keys);
  }
  MultiplyNN(rows, d, keys, 1.0f, scores, keys, v.row(low), v.stride, 0.0f, out.row(first),
             out.stride);
}

struct BackwardHead {
  Head q, k, v, out, dout, dq, dk, dv;
  const float* lse;
  int64_t lse_stride;
};

// `add`: dk and dv hold something already. p, ds: [kAttentionRows, keys].
void BackwardBlock(const Context& context, const AttentionShape& shape, int64_t first, int64_t rows,
                   bool add, const BackwardHead& head, float* p, float* ds) {
  const int64_t low = FirstKey(shape, first);
  const int64_t keys = first + rows - low;
  const int64_t d = shape.head_size;
  MultiplyNT(rows, keys, d, 1.0f, head.q.row(first), head.q.stride, head.k.row(low), head.k.stride,
             0.0f, p, keys);
  MultiplyNT(rows, keys, d, 1.0f, head.dout.row(first), head.dout.stride, head.v.row(low),
             head.v.stride, 0.0f, ds, keys);
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t begin = FirstKey(shape, first + row) - low;
    const int64_t end = first + row + 1 - low;
    float* p_row = p + row * keys;
    float* ds_row = ds + row * keys;
    // Where a query sees its own key alone, whose probability is always 1, q and k have no
    // gradient. The difference of two orders of summing would be one, and Adam's step is as long
    // for rounding as for any.
    const float delta = shape.window == 1 ? ds_row[begin]
                                          : context.loops.dot(head.dout.row(first + row),
                                                              head.out.row(first + row), d);
    const float lse = head.lse[(first + row) * head.lse_stride];
    if (shape.cap == 0) {
      context.loops.softmax_backward(p_row + begin, ds_row + begin, shape.scale, lse, delta,
                                     end - begin);
    } else {
      context.loops.capped_softmax_backward(p_row + begin, ds_row + begin, shape.scale, shape.cap,
                                            lse, delta, end - begin);
    }
    ClearOutside(p_row, begin, end, keys);
    ClearOutside(ds_row, begin, end, keys);
  }
  const float beta = add ? 1.0f : 0.0f;
  MultiplyTN(keys, d, rows, 1.0f, p, keys, head.dout.row(first), head.dout.stride, beta,
             head.dv.row(low), head.dv.stride);
  MultiplyTN(keys, d, rows, 1.0f, ds, keys, head.q.row(first), head.q.stride, beta,
             head.dk.row(low), head.dk.stride);
  MultiplyNN(rows, d, keys, 1.0f, ds, keys, head.k.row(low), head.k.stride, 0.0f,
             head.dq.row(first), head.dq.stride);
}

int64_t Blocks(const Segment& segment) {
  return (segment.rows + kAttentionRows - 1) / kAttentionRows;
}

// The rows of dk and dv that the last block of queries does not reach, to which the others add.
void ClearUnreached(const AttentionShape& shape, const Segment& segment, const BackwardHead& head) {
  const int64_t rows = FirstKey(shape, (Blocks(segment) - 1) * kAttentionRows);
  const size_t bytes = static_cast<size_t>(shape.head_size) * sizeof(float);
  for (int64_t row = 0; row < rows; ++row) {
    std::memset(head.dk.row(row), 0, bytes);
    std::memset(head.dv.row(row), 0, bytes);
  }
}

}  // namespace

void Attention(const Context& context, const CpuBatch& batch, const AttentionShape& shape,
               const TensorView& q, const TensorView& k, const TensorView& v, const TensorView& out,
               const TensorView& lse) {
  CheckShapes(batch, shape, q, k, v, out, lse);
  struct Item {
    const Segment* segment;
    int64_t head;
  };
  std::vector<Item> items;
  for (const Segment& segment : batch.segments) {
    assert(segment.rows <= context.workspace.limits.longest_segment);
    for (int64_t head = 0; head < shape.heads; ++head) items.push_back({&segment, head});
  }
  const int64_t d = shape.head_size;
  context.pool.Run(static_cast<int64_t>(items.size()), [&](int64_t index, int thread) {
    const auto& [segment, head] = items[static_cast<size_t>(index)];
    const int64_t kv_head = head / (shape.heads / shape.kv_heads);
    float* scores = context.workspace.scratch[static_cast<size_t>(thread)];
    for (int64_t block = 0; block < Blocks(*segment); ++block) {
      const int64_t first = block * kAttentionRows;
      ForwardBlock(context, shape, first, std::min(kAttentionRows, segment->rows - first),
                   HeadOf(q, *segment, head, d), HeadOf(k, *segment, kv_head, d),
                   HeadOf(v, *segment, kv_head, d), HeadOf(out, *segment, head, d),
                   lse.row(segment->first_row) + head, lse.row_stride, scores);
    }
  });
}

void AttentionBackward(const Context& context, const CpuBatch& batch, const AttentionShape& shape,
                       const TensorView& q, const TensorView& k, const TensorView& v,
                       const TensorView& out, const TensorView& lse, const TensorView& dout,
                       const TensorView& dq, const TensorView& dk, const TensorView& dv) {
  CheckShapes(batch, shape, q, k, v, out, lse);
  CheckShapes(batch, shape, dq, dk, dv, dout, lse);
  struct Item {
    const Segment* segment;
    int64_t kv_head;
  };
  std::vector<Item> items;
  for (const Segment& segment : batch.segments) {
    assert(segment.rows <= context.workspace.limits.longest_segment);
    for (int64_t head = 0; head < shape.kv_heads; ++head) items.push_back({&segment, head});
  }
  const int64_t d = shape.head_size;
  const int64_t sharing = shape.heads / shape.kv_heads;
  context.pool.Run(static_cast<int64_t>(items.size()), [&](int64_t index, int thread) {
    const auto& [segment, kv_head] = items[static_cast<size_t>(index)];
    float* p = context.workspace.scratch[static_cast<size_t>(thread)];
    float* ds = p + kAttentionRows * segment->rows;
    for (int64_t head = kv_head * sharing; head < (kv_head + 1) * sharing; ++head) {
      const BackwardHead views = {.q = HeadOf(q, *segment, head, d),
                                  .k = HeadOf(k, *segment, kv_head, d),
                                  .v = HeadOf(v, *segment, kv_head, d),
                                  .out = HeadOf(out, *segment, head, d),
                                  .dout = HeadOf(dout, *segment, head, d),
                                  .dq = HeadOf(dq, *segment, head, d),
                                  .dk = HeadOf(dk, *segment, kv_head, d),
                                  .dv = HeadOf(dv, *segment, kv_head, d),
                                  .lse = lse.row(segment->first_row) + head,
                                  .lse_stride = lse.row_stride};
      if (head == kv_head * sharing) ClearUnreached(shape, *segment, views);
      // From the last block back: it writes dk and dv of the keys that it reaches, all where there
      // is no window, and the others add.
      for (int64_t block = Blocks(*segment) - 1; block >= 0; --block) {
        const int64_t first = block * kAttentionRows;
        const bool add = head > kv_head * sharing || block + 1 < Blocks(*segment);
        BackwardBlock(context, shape, first, std::min(kAttentionRows, segment->rows - first), add,
                      views, p, ds);
      }
    }
  });
}

}  // namespace lorad::kernels::cpu
