// How far a backend may lie from the float64 reference: |got - want| <= absolute + relative * max
// |want| of the tensor. One line an operation and type; a looser value needs its reason beside it.
#ifndef LORAD_TESTS_KERNELS_TOLERANCES_H_
#define LORAD_TESTS_KERNELS_TOLERANCES_H_

namespace lorad::kernels::testing {

struct Tolerance {
  double absolute;
  double relative;
};

// float32
inline constexpr Tolerance kExact = {0, 0};
inline constexpr Tolerance kRmsNorm = {0, 1e-6};
inline constexpr Tolerance kRope = {0, 2e-6};
inline constexpr Tolerance kSwiGlu = {0, 1e-6};
inline constexpr Tolerance kAttention = {0, 4e-6};
inline constexpr Tolerance kAttentionBackward = {0, 1e-5};  // differences of p * ds cancel
inline constexpr Tolerance kLinear = {0, 4e-6};
inline constexpr Tolerance kLoraGradient = {1e-12, 1e-5};  // sums over 256 tokens; quantum 2^-44
inline constexpr Tolerance kLogP = {2e-6, 2e-6};
inline constexpr Tolerance kLossGradient = {0, 1e-5};
inline constexpr Tolerance kAdamW = {1e-9, 2e-6};
inline constexpr Tolerance kNorm = {0, 1e-12};

}  // namespace lorad::kernels::testing

#endif  // LORAD_TESTS_KERNELS_TOLERANCES_H_
