// What varies from microbatch to microbatch, from slot to slot, from step to step: the plain
// descriptions from which a backend makes its tables.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/tensor.h"
#include "sizes/batch.h"

namespace lorad::kernels {

// sizes/ has what memory is planned by as well.
using sizes::kChunkTokens;
using sizes::kRankAlignment;
using sizes::Limits;
using sizes::LoraSavedColumns;
using sizes::PaddedRank;

// Positions, features and ids that fit the dropout counter (docs/determinism.md has its layout).
inline constexpr int64_t kLayersMax = 1024;
inline constexpr int64_t kTargetsMax = 64;
inline constexpr int64_t kDropoutFeaturesMax = int64_t{1} << 19;

enum class Mode : uint8_t {
  kTrain,      // dropout on, gradients formed
  kEvaluate,   // dropout off, no gradient
  kReference,  // adapter off, no gradient
};

// Which mask a sequence sees: masks are a function of (seed, step, layer, target, sequence,
// position, feature).
struct DropoutKey {
  uint64_t seed = 0;      // of the job
  uint32_t step = 0;      // below 2^32 - 1
  uint32_t sequence = 0;  // its index in the job's global batch
};

// Consecutive tokens of one sequence, all of one adapter: rows [first_row, first_row + rows) of the
// microbatch.
struct Segment {
  int64_t first_row = 0;
  int64_t rows = 0;
  int64_t first_position = 0;  // of its first token in its sequence; a multiple of kChunkTokens
  int64_t first_angle = 0;     // row of the rope tables that position 0 of its sequence has
  int32_t slot = -1;           // -1: adapter off
  Mode mode = Mode::kTrain;
  DropoutKey dropout = {};
};

// A row whose next token counts: log p(target | rows up to this one) is asked for.
struct LossRow {
  int64_t row = 0;
  int32_t target = 0;
};

// One microbatch. Segments cover rows 0..T-1 in order without gaps; loss rows ascend. Attention
// sees the rows of one segment only (so a sequence is one segment, until an operation for continued
// ones exists).
struct BatchDescription {
  std::span<const int32_t> ids;  // [T]
  std::span<const Segment> segments;
  std::span<const LossRow> loss_rows;  // [n]
};

// One LoRA target of a linear group: rows [first_output, first_output + outputs) of the group's
// weight. The tensors belong to the caller and lie in device memory until the slot is cleared.
// Masters are finite.
struct LoraTarget {
  int64_t first_output = 0;
  int64_t outputs = 0;  // O
  int64_t rank = 0;     // R, at least 1
  float* a = nullptr;   // [R, K] master
  float* b = nullptr;   // [O, R] master
  // What products read where activations are not float32: the masters rounded to the activation
  // type, dense, ranks padded (PaddedRank) with zeros. Empty where activations are float32.
  TensorView a_copy = {};  // [PaddedRank(R), K]
  TensorView b_copy = {};  // [O, PaddedRank(R)]
  float scale = 0;         // s = alpha / R or alpha / sqrt(R)
  float dropout = 0;       // p in [0, 1)
  int32_t layer = 0;       // of the model, for the dropout counter; below kLayersMax
  int32_t target = 0;      // of the layer, for the dropout counter; below kTargetsMax
  // Gradients in fixed point (kGradientQuantum), added to by every backward. Both null where
  // nothing trains.
  int64_t* da = nullptr;  // [R, K]
  int64_t* db = nullptr;  // [O, R]
};

// Gradients over tokens are added as integers, so that no grouping of chunks can change a bit.
inline constexpr double kGradientQuantum = 0x1p-44;
inline constexpr double kGradientLimit =
    0x1p18;  // a chunk's value of this magnitude or more counts as not finite

// One matrix of a slot as the optimizer sees it; all of length `elements`.
struct OptimizerTensor {
  float* parameter = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  int64_t* gradient = nullptr;  // fixed point; zero after the step
  int64_t elements = 0;
  int64_t columns = 0;              // of the matrix; divides elements
  TensorView copy = {};             // the step writes the rounded parameter here too; or empty
  double learning_rate_factor = 1;  // of a step's learning rate
  double weight_decay = 0;          // decoupled, factors applied
};

struct AdamWOptions {
  double learning_rate = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  int64_t step = 1;        // counted from 1
  double clip_factor = 1;  // multiplies every gradient first
};

// What the gate of an MLP passes through before it multiplies: g sigmoid(v),
//   kSilu      v = g
//   kGeluTanh  v = 2 sqrt(2 / pi) (g + 0.044715 g^3): GELU with its tanh written as a sigmoid
//              (Hendrycks & Gimpel 2016, arXiv 1606.08415, section 2).
enum class Gate : uint8_t { kSilu, kGeluTanh };

// What turns heads: the table of Backend::FillRope, for the first table.columns features of every
// head; the others stay as they are. Empty: nothing is turned.
struct HeadAngles {
  HeadAngles() = default;
  HeadAngles(const TensorView& whole) : table(whole), head_size(whole.columns) {}  // of whole heads
  HeadAngles(const TensorView& part, int64_t size) : table(part), head_size(size) {}

  bool empty() const { return table.empty(); }
  bool whole() const { return table.columns == head_size; }

  TensorView table;  // [P, R], R even, at most D
  int64_t head_size = 0;
};

// The norms of q and k, which lie side by side: columns [0, q_columns) are normed in runs of
// q_weight's columns, the others in runs of k_weight's. A run is a head (both weights [1, D]), or
// all of q and all of k.
struct QkNorm {
  TensorView q_weight;  // [1, W], W divides q_columns
  TensorView k_weight;
  int64_t q_columns = 0;
  float eps = 0;
};

struct AttentionShape {
  int64_t heads = 0;      // N, a multiple of kv_heads
  int64_t kv_heads = 0;   // G
  int64_t head_size = 0;  // D, even
  float scale = 0;        // of q k^T, 1 / sqrt(D) as a rule
  int64_t window = 0;     // keys that a query sees, its own the last; 0: all up to its own
  float cap = 0;          // of the scaled scores; 0: none
};

}  // namespace lorad::kernels
