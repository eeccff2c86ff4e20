// Compiled once for each instruction set (LORAD_LOOPS is the table's name). Nothing here may have
// external linkage but that table, and no inline function of a header may be called: the linker
// would keep one copy for all CPUs.
#include "kernels/cpu/loops.h"

#include "kernels/batch.h"
#include "kernels/philox.h"

namespace lorad::kernels::cpu {
namespace {

constexpr int kLanes = 16;

struct Lanes {
  float lane[kLanes] = {};
};

// ((0+8)+(4+12)) + ... : a fixed tree.
inline float Sum(Lanes lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes.lane[i] += lanes.lane[i + width];
  }
  return lanes.lane[0];
}

inline float Max(Lanes lanes) {
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) {
      const float other = lanes.lane[i + width];
      lanes.lane[i] = other > lanes.lane[i] ? other : lanes.lane[i];
    }
  }
  return lanes.lane[0];
}

// e^x within 2 ulp: 2^k * e^r with |r| <= ln 2 / 2, e^r by a polynomial of degree 6 (Cephes' expf,
// coefficients by minimax). 0 below -87.33, infinity above 88.72, NaN stays.
inline float Exp(float x) {
  constexpr float kMagic =
      12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer in the low bits
  float clamped = x < -87.33654f ? -87.33654f : x;
  clamped = clamped > 88.72283f ? 88.72283f : clamped;
  const float shifted = clamped * 1.44269504f + kMagic;
  const float k = shifted - kMagic;
  float r = clamped - k * 0.693359375f;
  r = r + k * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  // Two factors, for k = 128 alone would overflow.
  const int32_t exponent =
      __builtin_bit_cast(int32_t, shifted) - __builtin_bit_cast(int32_t, kMagic);
  const int32_t half = exponent >> 1;
  const float scale1 = __builtin_bit_cast(float, (half + 127) << 23);
  const float scale2 = __builtin_bit_cast(float, (exponent - half + 127) << 23);
  const float result = p * scale1 * scale2;
  return x < -87.33654f ? 0.0f : result;
}

// e^x within 2 ulp for x <= 0: 2^k e^r as above, e^r by its Taylor series, of which what is left out
// is below 5e-18. 0 below -708.
inline double ExpFp64(double x) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52
  const double clamped = x < -708.0 ? -708.0 : x;
  const double shifted = clamped * 1.4426950408889634 + kMagic;
  const double k = shifted - kMagic;
  double r = clamped - k * 0.693145751953125;
  r = r - k * 1.42860682030941723e-6;
  double p = 1.6059043836821613e-10;  // 1 / 13!
  p = p * r + 2.0876756987868099e-9;
  p = p * r + 2.5052108385441719e-8;
  p = p * r + 2.7557319223985891e-7;
  p = p * r + 2.7557319223985893e-6;
  p = p * r + 2.4801587301587302e-5;
  p = p * r + 1.9841269841269841e-4;
  p = p * r + 1.3888888888888889e-3;
  p = p * r + 8.3333333333333333e-3;
  p = p * r + 4.1666666666666667e-2;
  p = p * r + 1.6666666666666667e-1;
  p = p * r + 0.5;
  p = p * (r * r) + r + 1.0;
  const int64_t exponent =
      __builtin_bit_cast(int64_t, shifted) - __builtin_bit_cast(int64_t, kMagic);
  const double result = p * __builtin_bit_cast(double, (exponent + 1023) << 52);
  return x < -708.0 ? 0.0 : result;
}

// rsqrt(mean(x^2) + eps).
inline float InverseRms(const float* x, float eps, int64_t n) {
  Lanes squares;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) squares.lane[j] += x[i + j] * x[i + j];
  }
  for (int j = 0; i + j < n; ++j) squares.lane[j] += x[i + j] * x[i + j];
  return 1.0f / __builtin_sqrtf(Sum(squares) / static_cast<float>(n) + eps);
}

// tanh within 2 ulp: x P(x^2) below 0.625 (Cephes' tanhf), else by e^2x.
inline float Tanh(float x) {
  const float z = x * x;
  float p = -5.70498872745e-3f;
  p = p * z + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const float small = p * z * x + x;
  const float large = 1.0f - 2.0f / (Exp(2.0f * x) + 1.0f);
  return x > -0.625f && x < 0.625f ? small : large;
}

void RmsNorm(const float* x, const float* w, float eps, float* y, int64_t n) {
  const float r = InverseRms(x, eps, n);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * r * w[i];
}

// y may be x or residual: every element is read before it is written.
void RmsNormAdd(const float* x, const float* w, float eps, const float* residual, float* y,
                int64_t n) {
  const float r = InverseRms(x, eps, n);
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = residual[i] + x[i] * r * w[i];
}

// kAdd: dx is added to, else written, and may be dy or x.
template <bool kAdd>
void RmsNormBackward(const float* x, const float* w, float eps, const float* dy, float* dx,
                     int64_t n) {
  Lanes squares;
  Lanes products;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      squares.lane[j] += x[i + j] * x[i + j];
      products.lane[j] += w[i + j] * dy[i + j] * x[i + j];
    }
  }
  for (int j = 0; i + j < n; ++j) {
    squares.lane[j] += x[i + j] * x[i + j];
    products.lane[j] += w[i + j] * dy[i + j] * x[i + j];
  }
  const float size = static_cast<float>(n);
  const float r = 1.0f / __builtin_sqrtf(Sum(squares) / size + eps);
  const float c = Sum(products) / size * r * r;
  if constexpr (kAdd) {
    for (i = 0; i < n; ++i) dx[i] += r * (w[i] * dy[i] - x[i] * c);
  } else {
#pragma GCC ivdep
    for (i = 0; i < n; ++i) dx[i] = r * (w[i] * dy[i] - x[i] * c);
  }
}

void Rope(float* x, const float* table, float sign, int64_t heads, int64_t d, int64_t r) {
  const int64_t half = r / 2;
  const float* cosine = table;
  const float* sine = table + half;
  for (int64_t head = 0; head < heads; ++head) {
    float* first = x + head * d;
    float* second = first + half;
#pragma GCC ivdep
    for (int64_t i = 0; i < half; ++i) {
      const float a = first[i];
      const float b = second[i];
      const float s = sign * sine[i];
      first[i] = a * cosine[i] - b * s;
      second[i] = b * cosine[i] + a * s;
    }
  }
}

void SwiGlu(const float* g, const float* u, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = g[i] / (1.0f + Exp(-g[i])) * u[i];
}

// Of GELU: 2 sqrt(2 / pi), and the cubic term's share.
constexpr float kGeluScale = 1.5957691216f;
constexpr float kGeluCubic = 0.044715f;

void GeGlu(const float* g, const float* u, float* y, int64_t n) {
  for (int64_t i = 0; i < n; ++i) {
    const float v = kGeluScale * (g[i] + kGeluCubic * g[i] * g[i] * g[i]);
    y[i] = g[i] / (1.0f + Exp(-v)) * u[i];
  }
}

// As SwiGluBackward.
void GeGluBackward(const float* g, const float* u, const float* dy, float* dg, float* du,
                   int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float square = g[i] * g[i];
    const float v = kGeluScale * (g[i] + kGeluCubic * g[i] * square);
    const float dv = kGeluScale * (1.0f + 3.0f * kGeluCubic * square);
    const float sigmoid = 1.0f / (1.0f + Exp(-v));
    const float gelu = g[i] * sigmoid;
    const float slope = sigmoid + gelu * dv * (1.0f - sigmoid);
    const float up = u[i];
    du[i] = dy[i] * gelu;
    dg[i] = dy[i] * up * slope;
  }
}

// dg may be g and du may be u: every element is read before it is written.
void SwiGluBackward(const float* g, const float* u, const float* dy, float* dg, float* du,
                    int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float sigmoid = 1.0f / (1.0f + Exp(-g[i]));
    const float silu = g[i] * sigmoid;
    const float slope = sigmoid + silu * (1.0f - sigmoid);
    const float up = u[i];
    du[i] = dy[i] * silu;
    dg[i] = dy[i] * up * slope;
  }
}

float MaxOf(const float* z, int64_t n) {
  Lanes best;
  for (int j = 0; j < kLanes; ++j) best.lane[j] = z[0];
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      best.lane[j] = z[i + j] > best.lane[j] ? z[i + j] : best.lane[j];
    }
  }
  for (int j = 0; i + j < n; ++j) best.lane[j] = z[i + j] > best.lane[j] ? z[i + j] : best.lane[j];
  return Max(best);
}

// z = exp(scale * z - shift); returns the sum.
inline float ScaledExpSum(float* z, float scale, float shift, int64_t n) {
  Lanes sum;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const float e = Exp(scale * z[i + j] - shift);
      z[i + j] = e;
      sum.lane[j] += e;
    }
  }
  for (int j = 0; i + j < n; ++j) {
    const float e = Exp(scale * z[i + j] - shift);
    z[i + j] = e;
    sum.lane[j] += e;
  }
  return Sum(sum);
}

float ExpSum(float* z, float shift, int64_t n) { return ScaledExpSum(z, 1.0f, shift, n); }

double ExpSumFp64(const float* z, float shift, int64_t n) {
  double lane[kLanes] = {};
  const double base = shift;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) lane[j] += ExpFp64(static_cast<double>(z[i + j]) - base);
  }
  for (int j = 0; i + j < n; ++j) lane[j] += ExpFp64(static_cast<double>(z[i + j]) - base);
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

float Softmax(float* z, float scale, int64_t n) {
  const float shift = MaxOf(z, n) * scale;
  const float sum = ScaledExpSum(z, scale, shift, n);
  const float inverse = 1.0f / sum;
  for (int64_t i = 0; i < n; ++i) z[i] *= inverse;
  return shift + __builtin_logf(sum);
}

void SoftCap(float* z, float scale, float cap, int64_t n) {
  const float inner = scale / cap;
  for (int64_t i = 0; i < n; ++i) z[i] = cap * Tanh(inner * z[i]);
}

void CappedExpLanes(float* z, float cap, float shift, float* lanes, int64_t n) {
  const float inner = 1.0f / cap;
  for (int64_t first = 0; first < n; first += kExpLanes) {
    const int64_t left = n - first < kExpLanes ? n - first : kExpLanes;
    for (int64_t j = 0; j < left; ++j) {
      const float t = inner * z[first + j];
      const float e = Exp(z[first + j] - shift);
      lanes[j] += e;
      z[first + j] = e * (1.0f - t * t);
    }
  }
}

void CappedSoftmaxBackward(float* p, float* ds, float scale, float cap, float lse, float delta,
                           int64_t n) {
  const float inner = scale / cap;
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float t = Tanh(inner * p[i]);
    const float e = Exp(cap * t - lse);
    p[i] = e;
    ds[i] = e * (ds[i] - delta) * scale * (1.0f - t * t);
  }
}

void SoftmaxBackward(float* p, float* ds, float scale, float lse, float delta, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float e = Exp(scale * p[i] - lse);
    p[i] = e;
    ds[i] = e * (ds[i] - delta) * scale;
  }
}

float Dot(const float* x, const float* y, int64_t n) {
  Lanes sum;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) sum.lane[j] += x[i + j] * y[i + j];
  }
  for (int j = 0; i + j < n; ++j) sum.lane[j] += x[i + j] * y[i + j];
  return Sum(sum);
}

void Scale(const float* x, float factor, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor;
}

void AddScaled(const float* x, float factor, float* y, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) y[i] += factor * x[i];
}

// kLanes counters at a time, the rounds of Philox (philox.h) lane by lane.
void DropoutBits(uint64_t key, const uint32_t* counter, uint32_t threshold, uint32_t first_block,
                 int64_t blocks, uint8_t* bits) {
  for (int64_t begin = 0; begin < blocks; begin += kLanes) {
    uint32_t word0[kLanes], word1[kLanes], word2[kLanes], word3[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      word0[j] = counter[0] + first_block + static_cast<uint32_t>(begin) + static_cast<uint32_t>(j);
      word1[j] = counter[1];
      word2[j] = counter[2];
      word3[j] = counter[3];
    }
    uint32_t k0 = static_cast<uint32_t>(key);
    uint32_t k1 = static_cast<uint32_t>(key >> 32);
#pragma GCC unroll 10
    for (int round = 0; round < kPhiloxRounds; ++round) {
      for (int j = 0; j < kLanes; ++j) {
        const uint64_t p0 = static_cast<uint64_t>(kPhiloxMultiplier0) * word0[j];
        const uint64_t p1 = static_cast<uint64_t>(kPhiloxMultiplier1) * word2[j];
        word0[j] = static_cast<uint32_t>(p1 >> 32) ^ word1[j] ^ k0;
        word1[j] = static_cast<uint32_t>(p1);
        word2[j] = static_cast<uint32_t>(p0 >> 32) ^ word3[j] ^ k1;
        word3[j] = static_cast<uint32_t>(p0);
      }
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    uint32_t kept[kLanes];
    for (int j = 0; j < kLanes; ++j) {
      uint32_t byte = 0;
      byte |= static_cast<uint32_t>((word0[j] & 0xFFFF) >= threshold) << 0;
      byte |= static_cast<uint32_t>((word0[j] >> 16) >= threshold) << 1;
      byte |= static_cast<uint32_t>((word1[j] & 0xFFFF) >= threshold) << 2;
      byte |= static_cast<uint32_t>((word1[j] >> 16) >= threshold) << 3;
      byte |= static_cast<uint32_t>((word2[j] & 0xFFFF) >= threshold) << 4;
      byte |= static_cast<uint32_t>((word2[j] >> 16) >= threshold) << 5;
      byte |= static_cast<uint32_t>((word3[j] & 0xFFFF) >= threshold) << 6;
      byte |= static_cast<uint32_t>((word3[j] >> 16) >= threshold) << 7;
      kept[j] = byte;
    }
    const int64_t left = blocks - begin;
    const int count = left < kLanes ? static_cast<int>(left) : kLanes;
    for (int j = 0; j < count; ++j) bits[begin + j] = static_cast<uint8_t>(kept[j]);
  }
}

constexpr uint32_t kBitOf[kDropoutLanes] = {1, 2, 4, 8, 16, 32, 64, 128};

void Select(const float* x, const uint8_t* bits, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kDropoutLanes <= n; i += kDropoutLanes) {
    const uint32_t byte = bits[i / kDropoutLanes];
    for (int j = 0; j < kDropoutLanes; ++j) y[i + j] = byte & kBitOf[j] ? x[i + j] : 0.0f;
  }
  for (int j = 0; i + j < n; ++j) {
    y[i + j] = bits[i / kDropoutLanes] & kBitOf[j] ? x[i + j] : 0.0f;
  }
}

void SelectAdd(const float* x, const uint8_t* bits, float factor, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kDropoutLanes <= n; i += kDropoutLanes) {
    const uint32_t byte = bits[i / kDropoutLanes];
    for (int j = 0; j < kDropoutLanes; ++j) {
      y[i + j] += byte & kBitOf[j] ? factor * x[i + j] : 0.0f;
    }
  }
  for (int j = 0; i + j < n; ++j) {
    y[i + j] += bits[i / kDropoutLanes] & kBitOf[j] ? factor * x[i + j] : 0.0f;
  }
}

bool AddFixed(const float* v, int64_t* sum, int64_t n) {
  constexpr float kLimit = static_cast<float>(kGradientLimit);
  constexpr double kScale = 1.0 / kGradientQuantum;
  uint32_t outside = 0;
  for (int64_t i = 0; i < n; ++i) {
    const bool inside = __builtin_fabsf(v[i]) < kLimit;
    outside |= inside ? 0u : 1u;
    const double value = inside ? static_cast<double>(v[i]) * kScale : 0.0;
    // Wraps around like the integers it adds; a sum out of range is seen when it is read.
    const uint64_t quanta = static_cast<uint64_t>(static_cast<int64_t>(__builtin_rint(value)));
    sum[i] = static_cast<int64_t>(static_cast<uint64_t>(sum[i]) + quanta);
  }
  return outside == 0;
}

double SumOfSquares(const int64_t* gradient, int64_t n, bool* finite) {
  constexpr int64_t kLimit = static_cast<int64_t>(kGradientLimit / kGradientQuantum);
  double lane[kLanes] = {};
  int64_t outside = 0;
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int j = 0; j < kLanes; ++j) {
      const int64_t quanta = gradient[i + j];
      outside |= quanta >= kLimit || quanta <= -kLimit ? 1 : 0;
      const double value = static_cast<float>(static_cast<double>(quanta) * kGradientQuantum);
      lane[j] += value * value;
    }
  }
  for (int j = 0; i + j < n; ++j) {
    const int64_t quanta = gradient[i + j];
    outside |= quanta >= kLimit || quanta <= -kLimit ? 1 : 0;
    const double value = static_cast<float>(static_cast<double>(quanta) * kGradientQuantum);
    lane[j] += value * value;
  }
  if (outside != 0) *finite = false;
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int j = 0; j < width; ++j) lane[j] += lane[j + width];
  }
  return lane[0];
}

void AdamW(const AdamWConstants& c, float* p, float* m, float* v, int64_t* gradient, int64_t n) {
#pragma GCC ivdep
  for (int64_t i = 0; i < n; ++i) {
    const float g =
        static_cast<float>(static_cast<double>(gradient[i]) * kGradientQuantum) * c.clip_factor;
    const float mi = m[i] + c.one_minus_beta1 * (g - m[i]);
    const float vi = v[i] * c.beta2 + c.one_minus_beta2 * g * g;
    const float denominator = __builtin_sqrtf(vi) / c.sqrt_bias2 + c.eps;
    p[i] = p[i] * c.decay - c.step_size * (mi / denominator);
    m[i] = mi;
    v[i] = vi;
    gradient[i] = 0;
  }
}

}  // namespace

extern const Loops LORAD_LOOPS;
const Loops LORAD_LOOPS = {
    .name = LORAD_LOOPS_NAME,
    .rms_norm = RmsNorm,
    .rms_norm_add = RmsNormAdd,
    .rms_norm_backward = RmsNormBackward<true>,
    .rms_norm_gradient = RmsNormBackward<false>,
    .rope = Rope,
    .swiglu = SwiGlu,
    .swiglu_backward = SwiGluBackward,
    .geglu = GeGlu,
    .geglu_backward = GeGluBackward,
    .softmax = Softmax,
    .softmax_backward = SoftmaxBackward,
    .soft_cap = SoftCap,
    .capped_exp_lanes = CappedExpLanes,
    .capped_softmax_backward = CappedSoftmaxBackward,
    .max = MaxOf,
    .exp_sum = ExpSum,
    .exp_sum_fp64 = ExpSumFp64,
    .dot = Dot,
    .scale = Scale,
    .add_scaled = AddScaled,
    .dropout_bits = DropoutBits,
    .select = Select,
    .select_add = SelectAdd,
    .add_fixed = AddFixed,
    .sum_of_squares = SumOfSquares,
    .adamw = AdamW,
};

}  // namespace lorad::kernels::cpu
