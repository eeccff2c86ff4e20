// Runs head and loss of the CUDA backend over given sequences of hidden states, each a function of
// a seed of its own, and gives back what each of them got.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/loss/linear_loss.h"
#include "tests/kernels/cuda/device_array.h"

namespace lorad::kernels::cuda::testing {

struct LossSequence {
  uint64_t seed = 0;
  int64_t rows = 0;
  Mode mode = Mode::kTrain;
  bool every_row = true;  // counts in the loss; otherwise two of three
  float scale = 1;        // of hidden states; NaN and infinity too
};

struct LossResults {
  std::vector<float> log_p;  // of its loss rows
  std::vector<float> unit;   // [loss rows, H]
};
struct LossReference {
  std::vector<double> log_p;
  std::vector<double> unit;
};

class LinearLossRig {
 public:
  // Head [V, H]: standard deviation `size` / sqrt(H), so that logits have `size`.
  LinearLossRig(DType dtype, int64_t vocabulary, int64_t hidden, int64_t tokens_max, float size,
                const LinearLossOptions& options = {}, const GemmOptions& gemm_options = {});

  // Outputs are NaN before. The rows of `unit` of sequences that do not train stay so.
  std::vector<LossResults> Run(const std::vector<LossSequence>& sequences, bool gradient = true);
  LossReference ReferenceOf(const LossSequence& sequence) const;

  // Median milliseconds of the operation, and of its products alone over the same rows.
  struct Times {
    double all_ms = 0;
    double forward_ms = 0;  // without a gradient
    double forward_product_ms = 0;
    double gradient_product_ms = 0;
  };
  Times Measure(int64_t rows);
  int64_t workspace_bytes() const { return workspace_->bytes(); }

 private:
  std::vector<float> HiddenOf(const LossSequence& sequence) const;
  std::vector<int64_t> LossRowsOf(const LossSequence& sequence) const;
  int32_t TargetOf(const LossSequence& sequence, int64_t row) const;

  Context context_;
  Gemm gemm_;
  LinearLossOperation operation_;
  int64_t vocabulary_, hidden_, tokens_max_;
  std::vector<float> head_;  // rounded; empty where the head is large (then no reference)
  std::unique_ptr<DeviceMatrix> weight_;
  CudaLinear linear_;
  std::unique_ptr<DeviceBytes> workspace_;
};

}  // namespace lorad::kernels::cuda::testing
