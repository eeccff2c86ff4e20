// Products with a frozen weight W [O, K] (row-major, one copy for both directions):
//   kForward        y = residual + x W^T + bias + sum_t S_t B_t^T            x [M, K], y [M, O]
//   kInputGradient  y = residual + x W          + sum_t D_t o (S_t A_t)      x [M, O], y [M, K]
// where the sums run over low-rank terms t, one a (slot, target) pair (Hu et al. 2021, arXiv
// 2106.09685, section 4.1, for many adapters at once): S [M, C] holds in a column range of its own,
// for every term, the coefficients of the rows that the term belongs to, and exact zeros in all
// other rows; B_t [O_t, R], A_t [R, K] are adapter matrices, D_t a dropout mask times its scale.
//
// Operands are bf16 (sums in fp32, rounded once, to nearest even), or all float32.
//
// What decides the order of sums: (operation, types, number of inner and outer features) and, for
// the terms, their order in a row's list. Never M, a row's place or its company: x W first, in
// ascending blocks of the inner feature, then the terms of the row's tile in list order (those with
// a mask after those without), then bias and residual. Strangers' terms add exact zeros (their
// coefficients are zero, factors finite). So equal rows give equal bits. bf16 only: the float32
// product promises no isolation.
//
// Two implementations: our own kernel for compute capability 9.0 (hopper.h), one launch for
// everything; and cuBLASLt followed by a kernel for the terms, for other devices and float32.
// Everything may be captured into a CUDA graph.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <memory>
#include <string>

#include "kernels/batch.h"
#include "kernels/cuda/rowwise/rope.h"
#include "kernels/tensor.h"
#include "sizes/cuda_loss.h"
#include "sizes/cuda_products.h"

namespace lorad::kernels::cuda {

enum class Product : uint8_t { kForward, kInputGradient };

using sizes::kMaskColumns;
using sizes::kPartColumns;
using sizes::kTermTileRows;

// A dropout mask over outputs of the product, kept as bits: element (row, column) is kept where bit
// column % 32 of words[row * row_words + column / 32] is set.
struct DropMask {
  const uint32_t* words = nullptr;  // device; [M, row_words], or null: no mask
  int64_t row_words = 0;            // at least ceil(outputs / kMaskColumns) * kMaskColumns / 32
  float scale = 1;                  // 1 / (1 - p)
};

// An entry of a device table: made on the host by Gemm::MakeTerm, copied to the device by the
// caller.
struct alignas(128) LowRankTerm {
  unsigned char tensor_map[128] = {};  // of the factor, for the bulk tensor copy; bf16 only
  const void* factor = nullptr;        // B_t [O_t, R] or A_t [R, K]
  int64_t factor_stride = 0;           // elements between its rows
  const uint32_t* mask_words = nullptr;
  int64_t mask_row_words = 0;
  float mask_scale = 1;
  int32_t rank = 0;          // columns of S it reads
  int32_t first_column = 0;  // of S
  int32_t first_output = 0;  // columns of y it adds to
  int32_t outputs = 0;
};
static_assert(sizeof(LowRankTerm) == 256);

// The terms of a product, all in device memory. The rows of tile i, [i * kTermTileRows, (i + 1) *
// kTermTileRows), see terms[list[first[i]]], ..., terms[list[first[i + 1] - 1]]: at least those
// that belong to one of its rows, in an order in which a slot's own terms always stand alike.
struct LowRankTable {
  const LowRankTerm* terms = nullptr;  // [count], aligned to 128 bytes
  const int32_t* first = nullptr;      // [ceil(M / kTermTileRows) + 1]
  const int32_t* list = nullptr;
  int32_t count = 0;  // upper bound where a captured graph is filled later

  constexpr bool empty() const { return terms == nullptr; }
};

// Head and loss (linear_loss.h). What becomes of z = x W^T, with the target's word apart:
//   y[i, j] = exp(z[i, j] - references[i]),  0 where j = targets[i];
//   target_logits[i] = z[i, targets[i]];
//   parts[c, i]: of the words j of the c-th kPartColumns columns but the target, the sum of y[i, j]
//   before it is rounded, and the maximum of z[i, j] - references[i].
// All arrays in device memory.
struct LossPart {
  float sum;
  float max;  // -infinity where there is no word
};
static_assert(sizeof(LossPart) == sizes::kLossPartBytes);
struct ExponentialTables {
  const float* references = nullptr;  // [M]
  const int32_t* targets = nullptr;   // [M]
  float* target_logits = nullptr;     // [M] out
  LossPart* parts = nullptr;          // [ceil(O / kPartColumns), M] out
  const int32_t* needed = nullptr;    // or null; where it holds 0, the product is not made

  constexpr bool empty() const { return references == nullptr; }
};
// And what becomes of s = x W:  y[i] = factors[i].target * W[targets[i]] - factors[i].rest * s[i].
struct LossFactors {
  float target;
  float rest;
};
static_assert(sizeof(LossFactors) == sizes::kLossFactorsBytes);
struct TargetTables {
  const int32_t* targets = nullptr;      // [M]
  const LossFactors* factors = nullptr;  // [M]

  constexpr bool empty() const { return targets == nullptr; }
};

// Rope (backend.h) of y's first columns. The heads' size D is a power of two from kRopeHeadMin on
// and divides y's columns; rows of angles begin at multiples of 8 bytes.
inline constexpr int64_t kRopeHeadMin = 64;
struct GemmRope {
  RopeTables tables;
  int32_t columns = 0;  // of y that are turned: a multiple of D

  constexpr bool empty() const { return tables.empty(); }
};

// Whether a product of so many columns can be turned so.
bool FitsRope(const GemmRope& rope, int64_t columns);

// All views: rows a multiple of 16 bytes apart, aligned to 16 bytes.
struct GemmArguments {
  Product product = Product::kForward;
  TensorView x;
  TensorView weight;          // [O, K], the type of x
  TensorView bias = {};       // [1, columns of y], the type of y; or empty
  TensorView residual = {};   // as y; or empty. May alias y.
  TensorView y;               // out; the type of x, or float32
  TensorView coefficients{};  // S [M, C], the type of x; read where there are terms
  LowRankTable terms = {};
  // kForward where own(), without bias and residual: y is gate beside up, and SwiGlu (backend.h) of
  // it is written here as well [M, O / 2]: the bits of an operation of its own.
  TensorView gated = {};
  // kInputGradient where own(), without bias and residual: the linear's input was SwiGlu of
  // gate_up [M, 2K], and y [M, 2K] is SwiGluBackward (backend.h) of what y is otherwise, rounded as
  // it is otherwise: the same bits. y may alias gate_up.
  TensorView gate_up = {};
  Gate gate = Gate::kSilu;  // of gated or gate_up
  // kForward where own(), without residual: y is turned as by an operation of its own, the same
  // bits.
  GemmRope rope = {};
  // kForward, and kInputGradient, where own(), without terms, bias and residual.
  ExponentialTables exponentials = {};
  TargetTables target_rows = {};
  // Of all that the product reads, the kernel before it in the stream makes coefficients and masks
  // alone: it awaits that kernel's end where it first needs them, not at its start. Where own() is
  // true.
  bool awaits_late = false;
};

struct GemmOptions {
  bool own_kernel = true;  // where the device has it; otherwise cuBLASLt. Changes bits.
};

class Gemm {
 public:
  // For the current device.
  explicit Gemm(const GemmOptions& options);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // What decides bits: kernel, library and version.
  std::string Id() const;
  // Scratch memory for Run, aligned to 256 bytes; one Run at a time may use it.
  static constexpr int64_t WorkspaceBytes() { return sizes::kProductBytes; }

  // Whether bf16 products run by our own kernel.
  bool own() const;

  // A term over columns [first_column, first_column + rank) of S. factor, of the type of x:
  //   kForward        B_t [O_t, R], rank = R, adds to columns [first_output, first_output + O_t)
  //   kInputGradient  A_t [R, K], rank = R, adds to all columns; first_output is 0
  // REQUIRES (bf16): first_column and R are multiples of kRankAlignment; factor finite.
  LowRankTerm MakeTerm(Product product, const TensorView& factor, int64_t first_column,
                       int64_t first_output, const DropMask& mask) const;

  // Enqueues the product. REQUIRES: as declared above; masks in kInputGradient only.
  void Run(const GemmArguments& arguments, void* workspace, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lorad::kernels::cuda
