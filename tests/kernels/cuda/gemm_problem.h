// A product of kernels/cuda/gemm/gemm.h with everything that it reads, drawn at random from a seed:
// segments of several adapters with targets, ranks and masks of their own in ragged rows.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "kernels/cuda/gemm/gemm.h"
#include "tests/kernels/cuda/gemm_reference.h"

namespace lorad::kernels::cuda {

struct ProblemOptions {
  Product product = Product::kForward;
  DType dtype = DType::kBfloat16;
  int64_t rows = 0;
  int64_t outputs = 0;  // O
  int64_t inputs = 0;   // K
  int64_t longest_segment = 512;
  bool terms = true;
  bool masks = true;
  bool not_finite = true;  // one segment's rows may be NaN
};

class Problem {
 public:
  Problem(const Gemm& gemm, const ProblemOptions& options, uint64_t seed);
  Problem(const Problem&) = delete;
  Problem& operator=(const Problem&) = delete;

  struct Slot {
    int first_term;
    int terms;
  };
  struct Segment {
    int64_t first_row;
    int64_t rows;
    int slot;  // or -1
    bool finite;
  };

  // With y poisoned (or, where the residual aliases it, holding the residual).
  GemmArguments Prepare();
  // What was added: for Compare.
  TensorView residual() const;
  const Fenced& y() const { return *y_; }
  const std::vector<Segment>& segments() const { return segments_; }
  std::vector<Sample> Samples(int count);

  // Runs the rows of segment `index` alone, with its own slot's terms alone at other columns, and
  // counts elements that differ from y's.
  int64_t CountDifferentAlone(Gemm& gemm, void* workspace, size_t index);

 private:
  struct Term {
    int64_t first_output;
    int64_t rank;
    int64_t first_column;
    std::unique_ptr<DeviceMemory> factor;
    TensorView factor_view;
    std::unique_ptr<DeviceMemory> mask;
    DropMask drop;
  };

  int64_t Draw(int64_t low, int64_t high);  // both included
  bool Chance(double p);
  void MakeSegments();
  void MakeSlots();
  void MakeTerm(int64_t first_output, int64_t outputs, bool masked);
  void FillCoefficients();
  void MakeTables(const Gemm& gemm);

  const ProblemOptions options_;
  std::mt19937_64 random_;
  int64_t columns_;  // of y
  std::unique_ptr<Fenced> x_, weight_, bias_, residual_, y_, coefficients_;
  bool in_place_ = false;
  std::vector<Segment> segments_;
  std::vector<Slot> slots_;
  std::vector<Term> terms_;
  int64_t coefficient_columns_ = 0;
  std::unique_ptr<DeviceArray<LowRankTerm>> device_terms_;
  std::unique_ptr<DeviceArray<int32_t>> device_first_, device_list_;
};

}  // namespace lorad::kernels::cuda
