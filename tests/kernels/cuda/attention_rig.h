// Runs attention of the CUDA backend over given sequences, each a function of a seed of its own,
// and gives back what each of them got. The same sequence can so be run alone and in any company.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"
#include "tests/kernels/cuda/device_array.h"

namespace lorad::kernels::cuda::testing {

struct Sequence {
  uint64_t seed = 0;
  int64_t rows = 0;
  bool poisoned = false;  // every input is NaN

  bool operator==(const Sequence&) const = default;
};

// Inputs of one sequence, rounded to the activation type: q, dout [rows, N*D], k, v [rows, G*D].
struct SequenceInputs {
  std::vector<float> q, k, v, dout;
};
SequenceInputs InputsOf(const Sequence& sequence, const AttentionShape& shape, DType dtype);

// out, dq [rows, N*D], lse [rows, N], dk, dv [rows, G*D].
struct SequenceResults {
  std::vector<float> out, lse, dq, dk, dv;
};
bool SameBits(const SequenceResults& a, const SequenceResults& b);

// In float64.
struct SequenceReference {
  std::vector<double> out, lse, dq, dk, dv;
};
SequenceReference ReferenceOf(const SequenceInputs& inputs, int64_t rows,
                              const AttentionShape& shape);

// What becomes of dq and dk.
enum class Turn {
  kNone,
  kWithin,  // the backward turns them back
  kAfter,   // Rope does, after the backward
};

class AttentionRig {
 public:
  AttentionRig(DType dtype, const AttentionOptions& options, const Limits& limits);

  // From now on, by a table of `positions` rows of cosines and sines of angles at random.
  void SetTurn(Turn turn, int64_t positions, int64_t head_size);

  // Packs the sequences in the order given and runs forward and backward. Outputs are NaN before.
  // "damaged" is set if anything outside the outputs was written.
  std::vector<SequenceResults> Run(const std::vector<Sequence>& sequences,
                                   const AttentionShape& shape);
  // How many of `count` more runs over the same inputs gave other bits than the first.
  int DifferentRepeats(const std::vector<Sequence>& sequences, const AttentionShape& shape,
                       int count);
  // True if forward and backward, captured into a CUDA graph and replayed, give the bits that they
  // give when called.
  bool SameWhenCaptured(const std::vector<Sequence>& sequences, const AttentionShape& shape);
  bool damaged() const { return damaged_; }
  // Median milliseconds of one call.
  struct Times {
    double forward_ms = 0;
    double backward_ms = 0;
  };
  Times Measure(const std::vector<Sequence>& sequences, const AttentionShape& shape);

  AttentionOperation& operation() { return *operation_; }
  int64_t workspace_bytes() const { return workspace_->bytes(); }

 private:
  struct Packed;
  std::unique_ptr<Packed> Pack(const std::vector<Sequence>& sequences, const AttentionShape& shape);
  void Forward(const Packed& packed);
  void Backward(const Packed& packed);

  Context context_;
  std::unique_ptr<AttentionOperation> operation_;
  std::unique_ptr<DeviceBytes> workspace_;
  Turn turn_ = Turn::kNone;
  std::unique_ptr<DeviceMatrix> angles_;  // null: kNone
  bool damaged_ = false;
};

}  // namespace lorad::kernels::cuda::testing
