// Attention by cuDNN on ragged batches, bf16, its deterministic backward (docs/kernels.md,
// Attention): the library's plans, kept by shape. cudnn-frontend's headers take a minute to
// compile, so they are included by cudnn.cc and by nothing else.
//
// What is computed: kernels.h. The order of sums is cuDNN's, which the tests of isolation hold to:
// a sequence has the same bits alone, among others, at any place and in any bucket.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/cuda/attention/kernels.h"

namespace lorad::kernels::cuda {

class CudnnAttention {
 public:
  // Everything is enqueued on `stream`, which outlives this. Current device: the stream's.
  explicit CudnnAttention(cudaStream_t stream);
  ~CudnnAttention();
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // "" if the cuDNN that was loaded is one this program may use, else what is wrong and the remedy.
  static std::string Problem();
  // "cudnn 9.19.0".
  static std::string Id();

  // True if there are plans, forward and, if asked for, backward, for arguments like these: head
  // size, numbers of heads, window, strides (which must be multiples of 16 bytes, as must the
  // pointers); none where scores are capped.
  bool Supports(const AttentionArguments& arguments, bool backward);

  // Bytes of workspace of the call's plan. `arguments.longest` is the call's S.
  int64_t WorkspaceBytes(const AttentionArguments& arguments, bool backward);
  // Enqueues it. ragged: the tables of LaunchRaggedOffsets for arguments.batch and .strides.
  // workspace: WorkspaceBytes, aligned to 256. Entries of no rows are skipped.
  void Forward(const AttentionArguments& arguments, const int32_t* ragged, void* workspace);
  void Backward(const AttentionArguments& arguments, const int32_t* ragged, void* workspace);

  // Plans made so far, and the host's time for them: constant in the steady state.
  int64_t plans() const;
  double plans_ms() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::kernels::cuda
