// The inner loops of everything that is not a matrix product, compiled once for each instruction
// set and chosen at run time. Every loop works on rows of plain floats; sums have 16 lanes and a
// fixed tree, whatever the instruction set.
#pragma once

#include <cstdint>
#include <vector>

namespace lorad::kernels::cpu {

// What AdamW applies to one tensor, rounded to float32 as torch does.
struct AdamWConstants {
  float clip_factor;
  float decay;            // 1 - lr * weight decay
  float one_minus_beta1;  // weight of the lerp
  float beta2;
  float one_minus_beta2;
  float sqrt_bias2;  // sqrt(1 - beta2^step)
  float eps;
  float step_size;  // lr / (1 - beta1^step)
};

inline constexpr int64_t kExpLanes = 8;

struct Loops {
  const char* name;

  // y = x * rsqrt(mean(x^2) + eps) * w.
  void (*rms_norm)(const float* x, const float* w, float eps, float* y, int64_t n);
  // y = residual + x * rsqrt(mean(x^2) + eps) * w; y may be x or residual.
  void (*rms_norm_add)(const float* x, const float* w, float eps, const float* residual, float* y,
                       int64_t n);
  // dx += r * (w dy - x r^2 mean(w dy x)).
  void (*rms_norm_backward)(const float* x, const float* w, float eps, const float* dy, float* dx,
                            int64_t n);
  // dx = r * (w dy - x r^2 mean(w dy x)); dx may be dy or x.
  void (*rms_norm_gradient)(const float* x, const float* w, float eps, const float* dy, float* dx,
                            int64_t n);
  // Rotates the first r features of `heads` heads of size d in place; table: r/2 cosines, then r/2
  // sines; sign -1 turns back.
  void (*rope)(float* x, const float* table, float sign, int64_t heads, int64_t d, int64_t r);
  // y = silu(g) * u.
  void (*swiglu)(const float* g, const float* u, float* y, int64_t n);
  void (*swiglu_backward)(const float* g, const float* u, const float* dy, float* dg, float* du,
                          int64_t n);
  // The same with GELU (tanh) of g (Gate, kernels/batch.h).
  void (*geglu)(const float* g, const float* u, float* y, int64_t n);
  void (*geglu_backward)(const float* g, const float* u, const float* dy, float* dg, float* du,
                         int64_t n);
  // z = softmax(scale * z); returns log sum exp(scale * z).
  float (*softmax)(float* z, float scale, int64_t n);
  // p = exp(scale * p - lse) in place (from scores), ds = p * (ds - delta) * scale in place (from
  // dp).
  void (*softmax_backward)(float* p, float* ds, float scale, float lse, float delta, int64_t n);
  // z = cap tanh(scale z / cap).
  void (*soft_cap)(float* z, float scale, float cap, int64_t n);
  // Of z that soft_cap capped, with e = exp(z - shift):  lanes[j mod kExpLanes] += e, ascending, and
  // z = e (1 - (z / cap)^2). At z = shift e is exactly 1.
  void (*capped_exp_lanes)(float* z, float cap, float shift, float* lanes, int64_t n);
  // softmax_backward of scores that were capped after they were scaled.
  void (*capped_softmax_backward)(float* p, float* ds, float scale, float cap, float lse,
                                  float delta, int64_t n);
  float (*max)(const float* z, int64_t n);
  // z = exp(z - shift); returns the sum.
  float (*exp_sum)(float* z, float shift, int64_t n);
  // sum exp(z - shift) in fp64, for z <= shift.
  double (*exp_sum_fp64)(const float* z, float shift, int64_t n);
  float (*dot)(const float* x, const float* y, int64_t n);
  // y = factor * x.
  void (*scale)(const float* x, float factor, float* y, int64_t n);
  // y += factor * x.
  void (*add_scaled)(const float* x, float factor, float* y, int64_t n);

  // Dropout bits of features 8 * first_block ... of one row: bit f of byte b is 1 if feature 8 b +
  // f is kept. counter: words 0 (with block 0) to 3.
  void (*dropout_bits)(uint64_t key, const uint32_t* counter, uint32_t threshold,
                       uint32_t first_block, int64_t blocks, uint8_t* bits);
  // y = kept ? x : 0.  n features, whose bits begin at bits[0].
  void (*select)(const float* x, const uint8_t* bits, float* y, int64_t n);
  // y += kept ? factor * x : 0.
  void (*select_add)(const float* x, const uint8_t* bits, float factor, float* y, int64_t n);

  // sum += v in fixed point; false if some |v| is not below kGradientLimit.
  bool (*add_fixed)(const float* v, int64_t* sum, int64_t n);
  // Sum of squares of the fixed-point values as float32, in fp64; `*finite` turns false outside
  // +-kGradientLimit.
  double (*sum_of_squares)(const int64_t* gradient, int64_t n, bool* finite);
  void (*adamw)(const AdamWConstants& c, float* p, float* m, float* v, int64_t* gradient,
                int64_t n);
};

// Those this CPU can run, the best last.
std::vector<const Loops*> SupportedLoops();

}  // namespace lorad::kernels::cpu
