#include "kernels/cuda/attention/attention.h"

#include <algorithm>
#include <cassert>

#include "kernels/cuda/device/check.h"
#include "kernels/cuda/rowwise/rowwise.h"

namespace lorad::kernels::cuda {
namespace {

// Where our backward runs, and where cuDNN's ragged attention was tested for isolation.
bool IsHopper(const Context& context) {
  return context.activation == DType::kBfloat16 && context.capability == 90;
}

// The ragged offsets that cuDNN reads, of all calls of a microbatch: the same in every layer, so
// made once for each direction, whose tensors have strides of their own.
struct RaggedTables {
  int32_t* offsets = nullptr;  // device
  AttentionStrides strides;
  bool made = false;
};

struct AttentionTables final : Extension {
  AttentionCalls plan;
  DeviceTable memory;
  const int32_t* first_rows = nullptr;  // device
  const int32_t* rows = nullptr;        // device
  RaggedTables forward;
  RaggedTables backward;
  // Of our own backward.
  AttentionUnits units;
  const AttentionUnit* key_units = nullptr;    // device
  const AttentionUnit* query_units = nullptr;  // device

  // Of call `index`, in one direction's tables.
  int64_t RaggedAt(size_t index) const {
    return kAttentionTensors * (plan.calls[index].first + static_cast<int64_t>(index));
  }
};

AttentionTables& TablesOf(Context& context, const CudaBatch& batch, int64_t tokens_max) {
  assert(batch.tokens() <= tokens_max);
  if (batch.attention == nullptr) {
    auto tables = std::make_unique<AttentionTables>();
    tables->plan = PlanAttention(batch.segments, tokens_max);
    const std::vector<int32_t>& first_rows = tables->plan.first_rows;
    const std::vector<int32_t>& rows = tables->plan.rows;
    const int64_t entries = static_cast<int64_t>(rows.size());
    // A call's table ends with one entry more than it has sequences.
    const int64_t ragged =
        kAttentionTensors * (entries + static_cast<int64_t>(tables->plan.calls.size()));
    TableLayout layout;
    const int64_t first_rows_at = layout.Add<int32_t>(entries);
    const int64_t rows_at = layout.Add<int32_t>(entries);
    tables->units = PlanUnits(batch.segments, kBackwardRows);
    const AttentionUnits& units = tables->units;
    const int64_t unit_count = static_cast<int64_t>(units.as_keys.size());
    const int64_t key_units_at = layout.Add<AttentionUnit>(unit_count);
    const int64_t query_units_at = layout.Add<AttentionUnit>(unit_count);
    const int64_t uploaded = layout.bytes();
    const int64_t forward_at = layout.Add<int32_t>(ragged);
    const int64_t backward_at = layout.Add<int32_t>(ragged);
    tables->memory = context.tables.Take(layout.bytes());
    std::copy(first_rows.begin(), first_rows.end(), tables->memory.Host<int32_t>(first_rows_at));
    std::copy(rows.begin(), rows.end(), tables->memory.Host<int32_t>(rows_at));
    std::copy(units.as_keys.begin(), units.as_keys.end(),
              tables->memory.Host<AttentionUnit>(key_units_at));
    std::copy(units.as_queries.begin(), units.as_queries.end(),
              tables->memory.Host<AttentionUnit>(query_units_at));
    tables->key_units = tables->memory.Device<AttentionUnit>(key_units_at);
    tables->query_units = tables->memory.Device<AttentionUnit>(query_units_at);
    tables->first_rows = tables->memory.Device<int32_t>(first_rows_at);
    tables->rows = tables->memory.Device<int32_t>(rows_at);
    tables->forward.offsets = tables->memory.Device<int32_t>(forward_at);
    tables->backward.offsets = tables->memory.Device<int32_t>(backward_at);
    tables->memory.Upload(uploaded);
    batch.attention = std::move(tables);
  }
  return static_cast<AttentionTables&>(*batch.attention);
}

void CheckShape(const TensorView& view, int64_t rows, int64_t columns, int64_t stride_limit) {
  assert(view.rows == rows && view.columns == columns);
  assert(rows * view.row_stride < stride_limit);
}

// The arguments that all calls of a microbatch share.
AttentionArguments Arguments(const CudaBatch& batch, const AttentionShape& shape,
                             const TensorView& q, const TensorView& k, const TensorView& v,
                             const TensorView& out, const TensorView& lse) {
  assert(shape.heads % shape.kv_heads == 0 && shape.head_size <= kOwnHeadSizeMax);
  constexpr int64_t kOffsets = int64_t{1} << 31;  // offsets are int32
  const int64_t tokens = batch.tokens();
  CheckShape(q, tokens, shape.heads * shape.head_size, kOffsets);
  CheckShape(k, tokens, shape.kv_heads * shape.head_size, kOffsets);
  CheckShape(v, tokens, shape.kv_heads * shape.head_size, kOffsets);
  CheckShape(out, tokens, shape.heads * shape.head_size, kOffsets);
  CheckShape(lse, tokens, shape.heads, kOffsets);
  assert(q.dtype == k.dtype && q.dtype == v.dtype && q.dtype == out.dtype);
  return {.heads = static_cast<int32_t>(shape.heads),
          .kv_heads = static_cast<int32_t>(shape.kv_heads),
          .head_size = static_cast<int32_t>(shape.head_size),
          .scale = shape.scale,
          .window = static_cast<int32_t>(shape.window),
          .cap = shape.cap,
          .strides = {.q = q.row_stride,
                      .k = k.row_stride,
                      .v = v.row_stride,
                      .out = out.row_stride,
                      .lse = lse.row_stride},
          .q = q.data,
          .k = k.data,
          .v = v.data,
          .out = out.data,
          .lse = lse.f32()};
}

// The direction's ragged offsets for these strides.
const int32_t* RaggedOf(const AttentionTables& tables, const AttentionStrides& strides,
                        RaggedTables& ragged, cudaStream_t stream) {
  if (ragged.made && ragged.strides == strides) return ragged.offsets;
  for (size_t i = 0; i < tables.plan.calls.size(); ++i) {
    const AttentionCall& call = tables.plan.calls[i];
    LaunchRaggedOffsets(tables.first_rows + call.first, tables.rows + call.first, call.batch,
                        strides, ragged.offsets + tables.RaggedAt(i), stream);
  }
  ragged.strides = strides;
  ragged.made = true;
  return ragged.offsets;
}

void SetCall(const AttentionTables& tables, const AttentionCall& call, AttentionArguments& to) {
  to.first_rows = tables.first_rows + call.first;
  to.rows = tables.rows + call.first;
  to.batch = call.batch;
  to.longest = call.rows;
}

template <typename T>
T* HeadAt(T* tensor, int64_t head, int64_t head_size, int64_t element_bytes) {
  using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
  return static_cast<Byte*>(tensor) + head * head_size * element_bytes;
}

// Key-value heads [first, first + count) and their query heads.
AttentionArguments HeadsOf(const AttentionArguments& a, int32_t first, int32_t count) {
  constexpr int64_t kBytes = 2;  // bf16
  const int32_t sharing = a.heads / a.kv_heads;
  const int64_t query_head = int64_t{first} * sharing;
  AttentionArguments part = a;
  part.heads = count * sharing;
  part.kv_heads = count;
  part.q = HeadAt(a.q, query_head, a.head_size, kBytes);
  part.k = HeadAt(a.k, first, a.head_size, kBytes);
  part.v = HeadAt(a.v, first, a.head_size, kBytes);
  part.out = HeadAt(a.out, query_head, a.head_size, kBytes);
  part.lse = a.lse + query_head;
  part.dout = HeadAt(a.dout, query_head, a.head_size, kBytes);
  part.dq = HeadAt(a.dq, query_head, a.head_size, kBytes);
  part.dk = HeadAt(a.dk, first, a.head_size, kBytes);
  part.dv = HeadAt(a.dv, first, a.head_size, kBytes);
  return part;
}

}  // namespace

AttentionOperation::AttentionOperation(Context& context, const AttentionOptions& options)
    : context_(context),
      options_(options),
      own_backward_(options.own_backward && IsHopper(context)) {
  const bool use = options.cudnn && IsHopper(context) && CudnnAttention::Problem().empty();
  if (use) cudnn_ = std::make_unique<CudnnAttention>(context.stream.get());
}

std::string AttentionOperation::Problem() const {
  return IsHopper(context_) ? CudnnAttention::Problem() : "";
}

std::string AttentionOperation::Id() const {
  return (cudnn_ == nullptr ? "attention own 1" : "attention " + CudnnAttention::Id()) +
         (own_backward_ ? " own backward 1" : "");
}

int64_t AttentionOperation::WorkspaceBytes(const Limits& limits) const {
  return sizes::CudaAttentionBytes(
      limits, BytesOf(context_.activation),
      {.score_bytes_max = options_.score_bytes_max, .own_backward = options_.own_backward});
}

void AttentionOperation::SetWorkspace(void* data, int64_t bytes, const Limits& limits) {
  assert(bytes >= WorkspaceBytes(limits));
  tokens_max_ = std::max<int64_t>(limits.tokens, 1);
  workspace_ = data;
  workspace_bytes_ = bytes;
}

void AttentionOperation::Prepare(const CudaBatch& batch) {
  if (workspace_bytes_ > 0) TablesOf(context_, batch, tokens_max_);
}

void AttentionOperation::Forward(const CudaBatch& batch, const AttentionShape& shape,
                                 const TensorView& q, const TensorView& k, const TensorView& v,
                                 const TensorView& out, const TensorView& lse) {
  AttentionArguments arguments = Arguments(batch, shape, q, k, v, out, lse);
  AttentionTables& tables = TablesOf(context_, batch, tokens_max_);
  const cudaStream_t stream = context_.stream.get();
  const bool library = cudnn_ != nullptr && cudnn_->Supports(arguments, false);
  const int32_t* ragged =
      library ? RaggedOf(tables, arguments.strides, tables.forward, stream) : nullptr;
  for (size_t i = 0; i < tables.plan.calls.size(); ++i) {
    SetCall(tables, tables.plan.calls[i], arguments);
    if (library) {
      RunForward(arguments, ragged + tables.RaggedAt(i));
    } else {
      LaunchAttention(arguments, context_.activation, stream);
    }
  }
}

void AttentionOperation::RunForward(const AttentionArguments& call, const int32_t* ragged) {
  const int64_t bytes = cudnn_->WorkspaceBytes(call, false);
  cudnn_bytes_max_ = std::max(cudnn_bytes_max_, bytes);
  if (bytes > workspace_bytes_) {
    Fail(__FILE__, __LINE__, "attention", "workspace", "cuDNN wants more than was planned");
  }
  cudnn_->Forward(call, ragged, workspace_);
}

void AttentionOperation::Backward(const CudaBatch& batch, const AttentionShape& shape,
                                  const TensorView& q, const TensorView& k, const TensorView& v,
                                  const TensorView& out, const TensorView& lse,
                                  const TensorView& dout, const TensorView& dq,
                                  const TensorView& dk, const TensorView& dv,
                                  const HeadAngles& angles) {
  AttentionArguments arguments = Arguments(batch, shape, q, k, v, out, lse);
  Arguments(batch, shape, dq, dk, dv, dout, lse);  // the same shapes
  arguments.strides.dout = dout.row_stride;
  arguments.strides.dq = dq.row_stride;
  arguments.strides.dk = dk.row_stride;
  arguments.strides.dv = dv.row_stride;
  arguments.dout = dout.data;
  arguments.dq = dq.data;
  arguments.dk = dk.data;
  arguments.dv = dv.data;
  AttentionTables& tables = TablesOf(context_, batch, tokens_max_);
  const cudaStream_t stream = context_.stream.get();
  const bool own = own_backward_ && HopperBackwardTakes(arguments);
  if (own) {
    const int64_t stride = sizes::ScratchStride(tables.units.scratch_rows);
    assert(4 * BackwardScratchFloats(shape.heads, stride) <= workspace_bytes_);
    LaunchAttentionBackwardHopper(
        {.arguments = arguments,
         .tokens = batch.tokens(),
         .key_units = tables.key_units,
         .query_units = tables.query_units,
         .unit_count = static_cast<int64_t>(tables.units.as_keys.size()),
         .scratch = static_cast<float*>(workspace_),
         .scratch_stride = stride,
         .multiprocessors = context_.multiprocessors,
         .rope = angles.whole() ? RopeOf(batch.tables, angles.table) : RopeTables{}},
        stream);
  } else {
    RunBackwards(batch, arguments);
  }
  if (angles.empty() || (own && angles.whole())) return;
  Rope(stream, batch.tables, angles, -1.0f, dq);
  Rope(stream, batch.tables, angles, -1.0f, dk);
}

void AttentionOperation::RunBackwards(const CudaBatch& batch, AttentionArguments arguments) {
  AttentionTables& tables = TablesOf(context_, batch, tokens_max_);
  const cudaStream_t stream = context_.stream.get();
  const bool library = cudnn_ != nullptr && cudnn_->Supports(arguments, true);
  const int32_t* ragged =
      library ? RaggedOf(tables, arguments.strides, tables.backward, stream) : nullptr;
  for (size_t i = 0; i < tables.plan.calls.size(); ++i) {
    SetCall(tables, tables.plan.calls[i], arguments);
    if (library) {
      RunBackward(arguments, ragged + tables.RaggedAt(i));
    } else {
      LaunchAttentionBackward(arguments, context_.activation, stream);
    }
  }
}

void AttentionOperation::RunBackward(const AttentionArguments& call, const int32_t* ragged) {
  const int64_t most = sizes::KvHeadsAtOnce(options_.score_bytes_max, call.batch, call.longest,
                                            call.heads, call.kv_heads);
  int32_t group = static_cast<int32_t>(most);
  // Another cuDNN may want more than was planned for this one: then fewer heads at a time.
  while (cudnn_->WorkspaceBytes(HeadsOf(call, 0, group), true) > workspace_bytes_) {
    if (group == 1) {
      Fail(__FILE__, __LINE__, "attention", "workspace", "cuDNN wants more than was planned");
    }
    group = static_cast<int32_t>(sizes::DivisorAtMost(call.kv_heads, group - 1));
  }
  cudnn_bytes_max_ =
      std::max(cudnn_bytes_max_, cudnn_->WorkspaceBytes(HeadsOf(call, 0, group), true));
  for (int32_t first = 0; first < call.kv_heads; first += group) {
    cudnn_->Backward(HeadsOf(call, first, group), ragged, workspace_);
  }
}

}  // namespace lorad::kernels::cuda
