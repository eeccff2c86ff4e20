// What the files of Model share: a block's parts as the backend's operations take them.
#pragma once

#include <cstdint>
#include <variant>

#include "kernels/batch.h"
#include "kernels/tensor.h"
#include "storage/models/model_description.h"

namespace lorad::worker {

inline const storage::AttentionSpec& Attention(const storage::Block& block) {
  return std::get<storage::AttentionSpec>(block.mixer);
}

inline const storage::GatedMlpSpec& Mlp(const storage::Block& block) {
  return std::get<storage::GatedMlpSpec>(block.mixer);
}

// Columns of q and k side by side.
inline int64_t QkColumns(const storage::AttentionSpec& spec) {
  return int64_t{spec.heads + spec.kv_heads} * spec.head_size;
}

// Columns of a [T, (N + 2G) D] buffer.
struct Qkv {
  kernels::TensorView q, k, v;  // side by side
};

inline Qkv SplitQkv(const kernels::TensorView& mix, const storage::AttentionSpec& spec) {
  const int64_t q = int64_t{spec.heads} * spec.head_size;
  const int64_t kv = int64_t{spec.kv_heads} * spec.head_size;
  return {mix.Columns(0, q), mix.Columns(q, kv), mix.Columns(q + kv, kv)};
}

inline kernels::AttentionShape KernelShape(const storage::AttentionSpec& spec) {
  return {.heads = spec.heads,
          .kv_heads = spec.kv_heads,
          .head_size = spec.head_size,
          .scale = static_cast<float>(spec.scale),
          .window = spec.window,
          .cap = static_cast<float>(spec.cap)};
}

inline kernels::Gate GateOf(const storage::GatedMlpSpec& spec) {
  return spec.activation == storage::Activation::kSilu ? kernels::Gate::kSilu
                                                       : kernels::Gate::kGeluTanh;
}

inline float EpsOf(const storage::NormSpec& norm) { return static_cast<float>(norm.eps); }

}  // namespace lorad::worker
