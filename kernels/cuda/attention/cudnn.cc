#include "kernels/cuda/attention/cudnn.h"

#include <cudnn_frontend.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <chrono>
#include <map>
#include <unordered_map>
#include <utility>

#include "kernels/cuda/device/check.h"

namespace lorad::kernels::cuda {
namespace {

namespace fe = cudnn_frontend;
using Graph = fe::graph::Graph;
using Tensor = fe::graph::Tensor_attributes;
using TensorPointer = std::shared_ptr<Tensor>;

// Names of tensors in a plan. The ragged offsets come in the order of AttentionStrides, after
// kRagged.
enum Uid : int64_t {
  kQ = 1,
  kK,
  kV,
  kOut,
  kLse,
  kDout,
  kDq,
  kDk,
  kDv,
  kRows,
  kRagged = 20,
};

void CheckCudnn(cudnnStatus_t status, const char* call, int line) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  Fail(__FILE__, line, call, "cuDNN", cudnnGetErrorString(status));
}

struct PlanKey {
  bool backward;
  int64_t batch;
  int64_t rows;
  int32_t heads;
  int32_t kv_heads;
  int32_t head_size;
  uint32_t scale_bits;
  int32_t window;
  std::array<int64_t, kAttentionTensors> strides;

  auto operator<=>(const PlanKey&) const = default;
};

std::array<int64_t, kAttentionTensors> InOrder(const AttentionStrides& s) {
  return {s.q, s.k, s.v, s.out, s.lse, s.dout, s.dq, s.dk, s.dv};
}

PlanKey KeyOf(const AttentionArguments& a, bool backward) {
  std::array<int64_t, kAttentionTensors> strides = InOrder(a.strides);
  if (!backward) std::fill(strides.begin() + (kDout - kQ), strides.end(), 0);
  return {.backward = backward,
          .batch = a.batch,
          .rows = a.longest,
          .heads = a.heads,
          .kv_heads = a.kv_heads,
          .head_size = a.head_size,
          .scale_bits = std::bit_cast<uint32_t>(a.scale),
          .window = a.window,
          .strides = strides};
}

struct Plan {
  std::shared_ptr<Graph> graph;
  int64_t workspace_bytes = 0;
  std::string problem;  // why there is no such plan; or ""
};

// Builds the graph of one plan.
class Builder {
 public:
  explicit Builder(const PlanKey& key) : key_(key), graph_(std::make_shared<Graph>()) {
    graph_->set_io_data_type(fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    rows_ = Index(kRows, key.batch);
  }

  Plan Build(cudnnHandle_t handle) {
    key_.backward ? AddBackward() : AddForward();
    Plan plan;
    fe::error_t error = graph_->validate();
    if (error.is_good()) error = graph_->build_operation_graph(handle);
    if (error.is_good()) error = graph_->create_execution_plans({fe::HeurMode_t::A});
    if (error.is_good()) error = graph_->check_support(handle);
    if (error.is_good()) error = graph_->build_plans(handle);
    if (error.is_good()) error = graph_->get_workspace_size(plan.workspace_bytes);
    if (error.is_bad()) {
      plan.problem = error.get_message();
      return plan;
    }
    plan.graph = graph_;
    return plan;
  }

 private:
  TensorPointer Index(int64_t uid, int64_t count) {
    return graph_->tensor(Tensor()
                              .set_uid(uid)
                              .set_dim({count, 1, 1, 1})
                              .set_stride({1, 1, 1, 1})
                              .set_data_type(fe::DataType_t::INT32));
  }

  // Shape, strides and offsets of [B, heads, S, head size], rows `stride` elements apart.
  Tensor Describe(int64_t uid, int64_t heads) {
    const int64_t stride = key_.strides[static_cast<size_t>(uid - kQ)];
    return Tensor()
        .set_uid(uid)
        .set_dim({key_.batch, heads, key_.rows, key_.head_size})
        .set_stride({key_.rows * stride, key_.head_size, stride, 1})
        .set_ragged_offset(Index(kRagged + uid - kQ, key_.batch + 1));
  }
  Tensor DescribeLse() {
    const int64_t stride = key_.strides[kLse - kQ];
    return Tensor()
        .set_uid(kLse)
        .set_data_type(fe::DataType_t::FLOAT)
        .set_dim({key_.batch, key_.heads, key_.rows, 1})
        .set_stride({key_.rows * stride, 1, stride, 1})
        .set_ragged_offset(Index(kRagged + kLse - kQ, key_.batch + 1));
  }
  TensorPointer Input(int64_t uid, int64_t heads) { return graph_->tensor(Describe(uid, heads)); }

  static void Output(const TensorPointer& tensor, Tensor as) {
    tensor->set_output(true)
        .set_uid(as.get_uid())
        .set_dim(as.get_dim())
        .set_stride(as.get_stride())
        .set_ragged_offset(as.get_ragged_offset());
  }

  void AddForward() {
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(true)
                       .set_causal_mask(true)
                       .set_attn_scale(std::bit_cast<float>(key_.scale_bits))
                       .set_padding_mask(true)
                       .set_seq_len_q(rows_)
                       .set_seq_len_kv(rows_);
    if (key_.window > 0) options.set_diagonal_band_left_bound(key_.window);
    auto [out, lse] = graph_->sdpa(Input(kQ, key_.heads), Input(kK, key_.kv_heads),
                                   Input(kV, key_.kv_heads), options);
    Output(out, Describe(kOut, key_.heads));
    Output(lse, DescribeLse());
    lse->set_data_type(fe::DataType_t::FLOAT);
  }

  void AddBackward() {
    auto options = fe::graph::SDPA_backward_attributes()
                       .set_name("attention backward")
                       .set_causal_mask(true)
                       .set_attn_scale(std::bit_cast<float>(key_.scale_bits))
                       .set_padding_mask(true)
                       .set_seq_len_q(rows_)
                       .set_seq_len_kv(rows_)
                       .set_deterministic_algorithm(true);
    if (key_.window > 0) options.set_diagonal_band_left_bound(key_.window);
    auto [dq, dk, dv] = graph_->sdpa_backward(
        Input(kQ, key_.heads), Input(kK, key_.kv_heads), Input(kV, key_.kv_heads),
        Input(kOut, key_.heads), Input(kDout, key_.heads), graph_->tensor(DescribeLse()), options);
    Output(dq, Describe(kDq, key_.heads));
    Output(dk, Describe(kDk, key_.kv_heads));
    Output(dv, Describe(kDv, key_.kv_heads));
  }

  const PlanKey key_;
  std::shared_ptr<Graph> graph_;
  TensorPointer rows_;
};

}  // namespace

struct CudnnAttention::Impl {
  const Plan& PlanOf(const AttentionArguments& arguments, bool backward) {
    const PlanKey key = KeyOf(arguments, backward);
    auto found = plans.find(key);
    if (found != plans.end()) return found->second;
    const auto begin = std::chrono::steady_clock::now();
    found = plans.emplace(key, Builder(key).Build(handle)).first;
    plans_ms +=
        std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    return found->second;
  }

  void Run(const AttentionArguments& a, bool backward, const int32_t* ragged, void* workspace) {
    const Plan& plan = PlanOf(a, backward);
    if (plan.graph == nullptr) Fail(__FILE__, __LINE__, "plan", "cuDNN", plan.problem.c_str());
    const auto input = [](const void* data) { return const_cast<void*>(data); };
    std::unordered_map<int64_t, void*> pack = {
        {kQ, input(a.q)}, {kK, input(a.k)}, {kV, input(a.v)},
        {kOut, a.out},    {kLse, a.lse},    {kRows, const_cast<int32_t*>(a.rows)}};
    if (backward) {
      pack.insert({{kDout, input(a.dout)}, {kDq, a.dq}, {kDk, a.dk}, {kDv, a.dv}});
    }
    for (int64_t t = 0; t < kAttentionTensors; ++t) {
      if (backward || t < kDout - kQ) {
        pack[kRagged + t] = const_cast<int32_t*>(ragged) + t * (a.batch + 1);
      }
    }
    fe::error_t error = plan.graph->execute(handle, pack, workspace);
    if (error.is_bad()) Fail(__FILE__, __LINE__, "execute", "cuDNN", error.get_message().c_str());
  }

  cudnnHandle_t handle = nullptr;
  std::map<PlanKey, Plan> plans;
  double plans_ms = 0;
};

CudnnAttention::CudnnAttention(cudaStream_t stream) : impl_(std::make_unique<Impl>()) {
  CheckCudnn(cudnnCreate(&impl_->handle), "cudnnCreate", __LINE__);
  CheckCudnn(cudnnSetStream(impl_->handle, stream), "cudnnSetStream", __LINE__);
}

CudnnAttention::~CudnnAttention() { cudnnDestroy(impl_->handle); }

std::string CudnnAttention::Problem() {
  const size_t loaded = cudnnGetVersion();
  if (loaded >= CUDNN_VERSION) return "";
  return "cuDNN " + std::to_string(loaded) + " was loaded, but this program was built with " +
         std::to_string(CUDNN_VERSION) + ": put that one first in LD_LIBRARY_PATH";
}

std::string CudnnAttention::Id() {
  const size_t version = cudnnGetVersion();
  return "cudnn " + std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) +
         "." + std::to_string(version % 100);
}

bool CudnnAttention::Supports(const AttentionArguments& arguments, bool backward) {
  if (!RowsAreAligned(arguments) || arguments.cap != 0) return false;
  const AttentionArguments& a = arguments;
  // Of the smallest call, with strides as if dense where backward's are not known yet.
  AttentionArguments probe = a;
  const int64_t q_columns = int64_t{a.heads} * a.head_size;
  const int64_t kv_columns = int64_t{a.kv_heads} * a.head_size;
  probe.batch = 1;
  probe.longest = 128;
  probe.strides = {.q = q_columns,
                   .k = kv_columns,
                   .v = kv_columns,
                   .out = q_columns,
                   .lse = a.heads,
                   .dout = q_columns,
                   .dq = q_columns,
                   .dk = kv_columns,
                   .dv = kv_columns};
  return impl_->PlanOf(probe, false).problem.empty() &&
         (!backward || impl_->PlanOf(probe, true).problem.empty());
}

int64_t CudnnAttention::WorkspaceBytes(const AttentionArguments& arguments, bool backward) {
  return impl_->PlanOf(arguments, backward).workspace_bytes;
}

void CudnnAttention::Forward(const AttentionArguments& arguments, const int32_t* ragged,
                             void* workspace) {
  impl_->Run(arguments, false, ragged, workspace);
}

void CudnnAttention::Backward(const AttentionArguments& arguments, const int32_t* ragged,
                              void* workspace) {
  impl_->Run(arguments, true, ragged, workspace);
}

int64_t CudnnAttention::plans() const { return static_cast<int64_t>(impl_->plans.size()); }

double CudnnAttention::plans_ms() const { return impl_->plans_ms; }

}  // namespace lorad::kernels::cuda
