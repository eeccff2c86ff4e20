#include "tests/kernels/cuda/attention_rig.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cuda/rowwise/rowwise.h"

namespace lorad::kernels::cuda::testing {
namespace {

constexpr int64_t kSpareColumns = 8;  // rows of q, k, v keep their alignment
constexpr int64_t kSpareRows = 3;

std::vector<float> Draw(uint64_t seed, int64_t count, float size, DType dtype) {
  Source source(seed);
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value = size * source.Normal();
    if (dtype == DType::kBfloat16) value = FromBfloat16(ToBfloat16(value));
  }
  return values;
}

double Dot(const float* x, const float* y, int64_t d) {
  double sum = 0;
  for (int64_t i = 0; i < d; ++i) sum += static_cast<double>(x[i]) * static_cast<double>(y[i]);
  return sum;
}

void AddScaled(double factor, const float* x, double* to, int64_t d) {
  for (int64_t i = 0; i < d; ++i) to[i] += factor * static_cast<double>(x[i]);
}

// Query `row` of query head `head`: its part in everything.
void ReferenceRow(const SequenceInputs& in, const AttentionShape& shape, int64_t row, int64_t head,
                  SequenceReference& to) {
  const int64_t d = shape.head_size;
  const int64_t kv_head = head / (shape.heads / shape.kv_heads);
  const auto at = [&](int64_t r, int64_t h, int64_t heads) {
    return static_cast<size_t>((r * heads + h) * d);
  };
  const size_t mine = at(row, head, shape.heads);
  const auto scale = static_cast<double>(shape.scale);
  const auto cap = static_cast<double>(shape.cap);
  const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(row - shape.window + 1, 0);
  std::vector<double> p(static_cast<size_t>(row + 1));
  std::vector<double> slope(p.size(), 1.0);  // of the cap
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t key = first; key <= row; ++key) {
    double& score = p[static_cast<size_t>(key)];
    score = scale * Dot(&in.q[mine], &in.k[at(key, kv_head, shape.kv_heads)], d);
    if (cap != 0) {
      const double t = std::tanh(score / cap);
      score = cap * t;
      slope[static_cast<size_t>(key)] = 1 - t * t;
    }
    max = std::max(max, score);
  }
  double sum = 0;
  for (int64_t key = first; key <= row; ++key) {
    double& value = p[static_cast<size_t>(key)];
    sum += value = std::exp(value - max);
  }
  to.lse[static_cast<size_t>(row * shape.heads + head)] = max + std::log(sum);
  double delta = 0;  // sum(dout * out)
  for (int64_t key = first; key <= row; ++key) {
    const size_t other = at(key, kv_head, shape.kv_heads);
    p[static_cast<size_t>(key)] /= sum;
    AddScaled(p[static_cast<size_t>(key)], &in.v[other], &to.out[mine], d);
    AddScaled(p[static_cast<size_t>(key)], &in.dout[mine], &to.dv[other], d);
    delta += p[static_cast<size_t>(key)] * Dot(&in.dout[mine], &in.v[other], d);
  }
  for (int64_t key = first; key <= row; ++key) {
    const size_t other = at(key, kv_head, shape.kv_heads);
    const double ds = scale * p[static_cast<size_t>(key)] * slope[static_cast<size_t>(key)] *
                      (Dot(&in.dout[mine], &in.v[other], d) - delta);
    AddScaled(ds, &in.k[other], &to.dq[mine], d);
    AddScaled(ds, &in.q[mine], &to.dk[other], d);
  }
}

// Columns [first, first + columns) of rows [first_row, ...) of a dense matrix of `stride`.
std::vector<float> Cut(const std::vector<float>& from, int64_t stride, int64_t first_row,
                       int64_t rows, int64_t first, int64_t columns) {
  std::vector<float> part;
  part.reserve(static_cast<size_t>(rows * columns));
  for (int64_t row = first_row; row < first_row + rows; ++row) {
    const auto begin = from.begin() + row * stride + first;
    part.insert(part.end(), begin, begin + columns);
  }
  return part;
}

void Paste(const std::vector<float>& part, int64_t columns, std::vector<float>& to, int64_t stride,
           int64_t first_row, int64_t first) {
  for (size_t i = 0; i < part.size() / static_cast<size_t>(columns); ++i) {
    const auto row = static_cast<int64_t>(i);
    std::copy_n(part.begin() + row * columns, columns,
                to.begin() + (first_row + row) * stride + first);
  }
}

// True if what surrounds the first `rows` x `columns` is as it was.
bool IsUntouched(const std::vector<float>& values, int64_t stride, int64_t rows, int64_t columns) {
  const auto as_it_was = [](float value) { return value == -77.0f; };
  for (int64_t row = 0; row < rows; ++row) {
    const auto spare = values.begin() + row * stride + columns;
    if (!std::all_of(spare, spare + (stride - columns), as_it_was)) return false;
  }
  return std::all_of(values.begin() + rows * stride, values.end(), as_it_was);
}

}  // namespace

SequenceInputs InputsOf(const Sequence& sequence, const AttentionShape& shape, DType dtype) {
  const int64_t q = sequence.rows * shape.heads * shape.head_size;
  const int64_t kv = sequence.rows * shape.kv_heads * shape.head_size;
  const float size = sequence.poisoned ? NAN : 1.0f;
  return {.q = Draw(4 * sequence.seed, q, size, dtype),
          .k = Draw(4 * sequence.seed + 1, kv, size, dtype),
          .v = Draw(4 * sequence.seed + 2, kv, size, dtype),
          .dout = Draw(4 * sequence.seed + 3, q, size, dtype)};
}

bool SameBits(const SequenceResults& a, const SequenceResults& b) {
  return SameBits(a.out, b.out) && SameBits(a.lse, b.lse) && SameBits(a.dq, b.dq) &&
         SameBits(a.dk, b.dk) && SameBits(a.dv, b.dv);
}

SequenceReference ReferenceOf(const SequenceInputs& inputs, int64_t rows,
                              const AttentionShape& shape) {
  SequenceReference reference;
  reference.out.resize(inputs.q.size());
  reference.dq.resize(inputs.q.size());
  reference.dk.resize(inputs.k.size());
  reference.dv.resize(inputs.v.size());
  reference.lse.resize(static_cast<size_t>(rows * shape.heads));
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t head = 0; head < shape.heads; ++head) {
      ReferenceRow(inputs, shape, row, head, reference);
    }
  }
  return reference;
}

// A microbatch on the device, as the model has it: q, k, v columns of one buffer, and dq, dk, dv.
struct AttentionRig::Packed {
  Packed(Context& context, const AttentionShape& attention, const BatchDescription& description)
      : shape(attention),
        q_columns(shape.heads * shape.head_size),
        kv_columns(shape.kv_heads * shape.head_size),
        columns(q_columns + 2 * kv_columns),
        stride(columns + kSpareColumns),
        rows(static_cast<int64_t>(description.ids.size()) + kSpareRows),
        batch(context, description),
        qkv(rows, stride, context.activation),
        gradient(rows, stride, context.activation),
        out(rows, q_columns + kSpareColumns, context.activation),
        dout(rows, q_columns + kSpareColumns, context.activation),
        lse(rows, shape.heads + 1, DType::kFloat32) {}

  TensorView Part(const DeviceMatrix& matrix, int64_t first, int64_t count) const {
    return matrix.view().Rows(0, rows - kSpareRows).Columns(first, count);
  }

  const AttentionShape shape;
  const int64_t q_columns, kv_columns, columns, stride, rows;
  CudaBatch batch;
  DeviceMatrix qkv, gradient, out, dout, lse;
};

AttentionRig::AttentionRig(DType dtype, const AttentionOptions& options, const Limits& limits)
    : context_(0, dtype), operation_(std::make_unique<AttentionOperation>(context_, options)) {
  workspace_ = std::make_unique<DeviceBytes>(operation_->WorkspaceBytes(limits));
  operation_->SetWorkspace(workspace_->data(), workspace_->bytes(), limits);
}

std::unique_ptr<AttentionRig::Packed> AttentionRig::Pack(const std::vector<Sequence>& sequences,
                                                         const AttentionShape& shape) {
  std::vector<Segment> segments;
  int64_t tokens = 0;
  for (const Sequence& sequence : sequences) {
    segments.push_back({.first_row = tokens, .rows = sequence.rows});
    tokens += sequence.rows;
  }
  const std::vector<int32_t> ids(static_cast<size_t>(tokens));
  auto packed = std::make_unique<Packed>(context_, shape, BatchDescription{ids, segments, {}});
  const Packed& p = *packed;
  std::vector<float> qkv(static_cast<size_t>(p.rows * p.stride), NAN);
  std::vector<float> dout(static_cast<size_t>(p.rows * (p.q_columns + kSpareColumns)), NAN);
  SequenceInputs inputs;
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (i == 0 || !(sequences[i] == sequences[i - 1])) {
      inputs = InputsOf(sequences[i], shape, context_.activation);
    }
    const int64_t first = segments[i].first_row;
    Paste(inputs.q, p.q_columns, qkv, p.stride, first, 0);
    Paste(inputs.k, p.kv_columns, qkv, p.stride, first, p.q_columns);
    Paste(inputs.v, p.kv_columns, qkv, p.stride, first, p.q_columns + p.kv_columns);
    Paste(inputs.dout, p.q_columns, dout, p.q_columns + kSpareColumns, first, 0);
  }
  packed->qkv.Write(qkv);
  packed->dout.Write(dout);
  // NaN where results go, -77 around.
  const auto poison = [&](DeviceMatrix& matrix, int64_t columns) {
    std::vector<float> values(static_cast<size_t>(matrix.view().elements()), -77.0f);
    for (int64_t row = 0; row < tokens; ++row) {
      std::fill_n(values.begin() + row * matrix.view().columns, columns, NAN);
    }
    matrix.Write(values);
  };
  poison(packed->gradient, p.columns);
  poison(packed->out, p.q_columns);
  poison(packed->lse, shape.heads);
  return packed;
}

void AttentionRig::Forward(const Packed& p) {
  operation_->Forward(p.batch, p.shape, p.Part(p.qkv, 0, p.q_columns),
                      p.Part(p.qkv, p.q_columns, p.kv_columns),
                      p.Part(p.qkv, p.q_columns + p.kv_columns, p.kv_columns),
                      p.Part(p.out, 0, p.q_columns), p.Part(p.lse, 0, p.shape.heads));
}

void AttentionRig::SetTurn(Turn turn, int64_t positions, int64_t head_size) {
  turn_ = turn;
  const int64_t half = head_size / 2;
  std::vector<float> angles(static_cast<size_t>(positions * head_size));
  Source source(99);
  for (int64_t i = 0; i < positions * half; ++i) {
    const float angle = 2 * source.Normal();
    const auto at = static_cast<size_t>(i / half * head_size + i % half);
    angles[at] = std::cos(angle);
    angles[at + static_cast<size_t>(half)] = std::sin(angle);
  }
  angles_ = std::make_unique<DeviceMatrix>(positions, head_size, DType::kFloat32);
  angles_->Write(angles);
}

void AttentionRig::Backward(const Packed& p) {
  operation_->Backward(
      p.batch, p.shape, p.Part(p.qkv, 0, p.q_columns), p.Part(p.qkv, p.q_columns, p.kv_columns),
      p.Part(p.qkv, p.q_columns + p.kv_columns, p.kv_columns), p.Part(p.out, 0, p.q_columns),
      p.Part(p.lse, 0, p.shape.heads), p.Part(p.dout, 0, p.q_columns),
      p.Part(p.gradient, 0, p.q_columns), p.Part(p.gradient, p.q_columns, p.kv_columns),
      p.Part(p.gradient, p.q_columns + p.kv_columns, p.kv_columns),
      turn_ == Turn::kWithin ? angles_->view() : TensorView{});
  if (turn_ == Turn::kAfter) {
    Rope(context_.stream.get(), p.batch.tables, angles_->view(), -1.0f,
         p.Part(p.gradient, 0, p.q_columns + p.kv_columns));
  }
}

std::vector<SequenceResults> AttentionRig::Run(const std::vector<Sequence>& sequences,
                                               const AttentionShape& shape) {
  const std::unique_ptr<Packed> packed = Pack(sequences, shape);
  const Packed& p = *packed;
  Forward(p);
  Backward(p);
  const std::vector<float> out = p.out.Read();
  const std::vector<float> lse = p.lse.Read();
  const std::vector<float> gradient = p.gradient.Read();
  const int64_t tokens = p.rows - kSpareRows;
  const int64_t out_stride = p.q_columns + kSpareColumns;
  damaged_ = damaged_ || !IsUntouched(out, out_stride, tokens, p.q_columns) ||
             !IsUntouched(lse, shape.heads + 1, tokens, shape.heads) ||
             !IsUntouched(gradient, p.stride, tokens, p.columns);
  std::vector<SequenceResults> results;
  int64_t first = 0;
  for (const Sequence& sequence : sequences) {
    const int64_t rows = sequence.rows;
    results.push_back(
        {.out = Cut(out, out_stride, first, rows, 0, p.q_columns),
         .lse = Cut(lse, shape.heads + 1, first, rows, 0, shape.heads),
         .dq = Cut(gradient, p.stride, first, rows, 0, p.q_columns),
         .dk = Cut(gradient, p.stride, first, rows, p.q_columns, p.kv_columns),
         .dv = Cut(gradient, p.stride, first, rows, p.q_columns + p.kv_columns, p.kv_columns)});
    first += rows;
  }
  return results;
}

int AttentionRig::DifferentRepeats(const std::vector<Sequence>& sequences,
                                   const AttentionShape& shape, int count) {
  const std::unique_ptr<Packed> packed = Pack(sequences, shape);
  std::vector<std::vector<float>> first;
  int different = 0;
  for (int run = 0; run <= count; ++run) {
    Forward(*packed);
    Backward(*packed);
    std::vector<std::vector<float>> got = {packed->out.Read(), packed->lse.Read(),
                                           packed->gradient.Read()};
    if (run == 0) first = std::move(got);
    bool same = true;
    for (size_t i = 0; run > 0 && i < first.size(); ++i) same = same && SameBits(first[i], got[i]);
    different += same ? 0 : 1;
  }
  return different;
}

bool AttentionRig::SameWhenCaptured(const std::vector<Sequence>& sequences,
                                    const AttentionShape& shape) {
  const std::unique_ptr<Packed> called = Pack(sequences, shape);
  Forward(*called);
  Backward(*called);
  const std::unique_ptr<Packed> captured = Pack(sequences, shape);
  operation_->Prepare(captured->batch);
  const cudaStream_t stream = context_.stream.get();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t instance = nullptr;
  LORAD_CUDA_CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  Forward(*captured);
  Backward(*captured);
  LORAD_CUDA_CHECK(cudaStreamEndCapture(stream, &graph));
  LORAD_CUDA_CHECK(cudaGraphInstantiate(&instance, graph, 0));
  for (int replay = 0; replay < 2; ++replay) LORAD_CUDA_CHECK(cudaGraphLaunch(instance, stream));
  LORAD_CUDA_CHECK(cudaStreamSynchronize(stream));
  LORAD_CUDA_CHECK(cudaGraphExecDestroy(instance));
  LORAD_CUDA_CHECK(cudaGraphDestroy(graph));
  return SameBits(called->out.Read(), captured->out.Read()) &&
         SameBits(called->lse.Read(), captured->lse.Read()) &&
         SameBits(called->gradient.Read(), captured->gradient.Read());
}

AttentionRig::Times AttentionRig::Measure(const std::vector<Sequence>& sequences,
                                          const AttentionShape& shape) {
  constexpr int kCalls = 10;
  const std::unique_ptr<Packed> packed = Pack(sequences, shape);
  const cudaStream_t stream = context_.stream.get();
  Times times;
  times.forward_ms = MedianMs(stream, kCalls, [&] { Forward(*packed); });
  times.backward_ms = MedianMs(stream, kCalls, [&] { Backward(*packed); });
  return times;
}

}  // namespace lorad::kernels::cuda::testing
