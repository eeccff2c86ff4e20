// How far a backend may lie from the float64 reference: |got - want| <= absolute + relative * max
// |want| of the tensor. One line an operation and type; a looser value needs its reason beside it.
#pragma once

namespace lorad::kernels::testing {

struct Tolerance {
  double absolute;
  double relative;
};

// bfloat16 keeps 8 bits: rounding a result once costs up to 2^-8 = 0.0039 of it. Inputs of the
// tests are exact in the type, sums are float32.
struct OperationTolerance {
  Tolerance float32;
  Tolerance bfloat16;
};

inline constexpr OperationTolerance kExact = {{0, 0}, {0, 0}};
inline constexpr OperationTolerance kRmsNorm = {{0, 1e-6}, {0, 4e-3}};
// Differences of the residual's gradient before and after, which is rounded as a whole.
inline constexpr OperationTolerance kRmsNormBackward = {{2e-6, 1e-5}, {1.6e-2, 4e-3}};
inline constexpr OperationTolerance kRope = {{0, 2e-6}, {0, 4e-3}};
inline constexpr OperationTolerance kRopeBack = {{0, 2e-6}, {0, 1e-2}};  // of what was rounded once
// Against what was rounded between norm and rope.
inline constexpr OperationTolerance kQkNormRope = {{0, 4e-6}, {0, 1e-2}};
inline constexpr OperationTolerance kSwiGlu = {{0, 1e-6}, {0, 4e-3}};
inline constexpr OperationTolerance kAttention = {{0, 4e-6}, {0, 6e-3}};  // p is rounded as well
inline constexpr OperationTolerance kLogSumExp = {{0, 4e-6}, {0, 4e-6}};
// Differences of p * ds cancel; in bfloat16 p, ds and out are rounded.
inline constexpr OperationTolerance kAttentionBackward = {{0, 1e-5}, {0, 2e-2}};
inline constexpr OperationTolerance kLinear = {{0, 4e-6}, {0, 6e-3}};  // S is rounded as well
// Sums over 256 tokens; quantum 2^-44. In bfloat16 S and dS are rounded.
inline constexpr OperationTolerance kLoraGradient = {{1e-12, 1e-5}, {1e-12, 6e-3}};
inline constexpr OperationTolerance kLogP = {{2e-6, 2e-6}, {2e-6, 2e-6}};
// Sums in float32 of exact products, not rounded behind them. Relative to the largest sum of the
// products' magnitudes, no more than the cap (LogitsScale): a logit may be small because they
// cancel.
inline constexpr OperationTolerance kLogits = {{0, 1e-6}, {0, 1e-6}};
inline constexpr OperationTolerance kLossGradient = {{0, 1e-5}, {0, 8e-3}};  // p is rounded as well
inline constexpr OperationTolerance kAdamW = {{1e-9, 2e-6}, {1e-9, 2e-6}};

}  // namespace lorad::kernels::testing
