// Attention of the CUDA backend (kernels/backend.h, Attention and AttentionBackward): in bf16 on
// Hopper cuDNN forward and a kernel of our own backward (backward.h); cuDNN backward too for the
// head sizes that ours does not take; plain kernels of our own otherwise.
//
// A microbatch is cut into calls of cuDNN by PlanAttention (calls.h); our backward takes it in one.
// cuDNN's backward of long sequences runs in groups of key-value heads, for its deterministic
// algorithm keeps 2 * B * heads * S * S bytes; heads are independent, so groups change no bits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/batch.h"
#include "kernels/cuda/attention/backward.h"
#include "kernels/cuda/attention/calls.h"
#include "kernels/cuda/attention/cudnn.h"
#include "kernels/cuda/device/context.h"
#include "kernels/cuda/handles/handles.h"
#include "kernels/tensor.h"

namespace lorad::kernels::cuda {

struct AttentionOptions {
  // What the probabilities of one call of cuDNN's backward may take, unless a single key-value
  // head's take more. Changes speed and memory alone.
  int64_t score_bytes_max = sizes::kScoreBytesMax;
  bool cudnn = true;         // cuDNN where it passed the tests. Changes bits.
  bool own_backward = true;  // backward.h where it can be used. Changes bits.
};

class AttentionOperation {
 public:
  // The context outlives this.
  explicit AttentionOperation(Context& context, const AttentionOptions& options = {});

  // "" or why attention cannot run here, with the remedy (a cuDNN too old).
  std::string Problem() const;
  // What decides bits.
  std::string Id() const;

  // Scratch that any batch within `limits` needs.
  int64_t WorkspaceBytes(const Limits& limits) const;
  // Device memory, aligned to 256, WorkspaceBytes(limits) at least, shared with other operations of
  // the stream. Replaces the last; batches prepared before keep their calls.
  void SetWorkspace(void* data, int64_t bytes, const Limits& limits);

  // Makes the batch's tables, so that operations upload nothing. Done by the first one otherwise.
  void Prepare(const CudaBatch& batch);
  void Forward(const CudaBatch& batch, const AttentionShape& shape, const TensorView& q,
               const TensorView& k, const TensorView& v, const TensorView& out,
               const TensorView& lse);
  // angles: by which dq and dk are to be turned back (RopeBackward), or empty; the same bits as by
  // a pass of its own, which is made where the backward is not ours or heads are not turned whole.
  void Backward(const CudaBatch& batch, const AttentionShape& shape, const TensorView& q,
                const TensorView& k, const TensorView& v, const TensorView& out,
                const TensorView& lse, const TensorView& dout, const TensorView& dq,
                const TensorView& dk, const TensorView& dv, const HeadAngles& angles = {});

  // Plans made so far, and the host's time for them: constant in the steady state.
  int64_t plans() const { return cudnn_ == nullptr ? 0 : cudnn_->plans(); }
  double plans_ms() const { return cudnn_ == nullptr ? 0 : cudnn_->plans_ms(); }
  // The most that cuDNN has wanted so far: what WorkspaceBytes must cover.
  int64_t cudnn_bytes_max() const { return cudnn_bytes_max_; }

 private:
  // In calls, of cuDNN or of plain kernels.
  void RunBackwards(const CudaBatch& batch, AttentionArguments arguments);
  // By cuDNN; ragged: the call's offsets.
  void RunForward(const AttentionArguments& call, const int32_t* ragged);
  void RunBackward(const AttentionArguments& call, const int32_t* ragged);

  Context& context_;
  const AttentionOptions options_;
  const bool own_backward_;
  std::unique_ptr<CudnnAttention> cudnn_;  // null where it is not used
  void* workspace_ = nullptr;
  int64_t workspace_bytes_ = 0;
  int64_t tokens_max_ = 1;
  int64_t cudnn_bytes_max_ = 0;
};

}  // namespace lorad::kernels::cuda
