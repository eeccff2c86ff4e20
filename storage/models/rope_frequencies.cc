#include "storage/models/rope_frequencies.h"

#include <algorithm>
#include <cmath>

namespace lorad::storage {
namespace {

// theta^(2i/R): the exponent and the power are rounded each.
float PowerOf(double theta, size_t i, size_t features) {
  const float exponent = static_cast<float>(2 * i) / static_cast<float>(features);
  return static_cast<float>(std::pow(theta, static_cast<double>(exponent)));
}

// The feature that turns so many times in the original positions.
double FeatureOf(double turns, double theta, int features, int64_t positions) {
  return features * std::log(static_cast<double>(positions) / (turns * 2 * M_PI)) /
         (2 * std::log(theta));
}

}  // namespace

std::vector<float> InverseFrequencies(double theta, int features) {
  std::vector<float> out(static_cast<size_t>(features / 2));
  for (size_t i = 0; i < out.size(); ++i) out[i] = 1.0f / PowerOf(theta, i, 2 * out.size());
  return out;
}

float ScaleLlama3(float frequency, const Llama3Scaling& scaling) {
  const float wavelength = static_cast<float>(2 * M_PI) / frequency;
  const float low_wavelength = scaling.original_positions / scaling.low_freq_factor;
  const float high_wavelength = scaling.original_positions / scaling.high_freq_factor;
  if (wavelength < high_wavelength) return frequency;
  if (wavelength > low_wavelength) return frequency / scaling.factor;
  const float smooth = (scaling.original_positions / wavelength - scaling.low_freq_factor) /
                       (scaling.high_freq_factor - scaling.low_freq_factor);
  return (1.0f - smooth) * (frequency / scaling.factor) + smooth * frequency;
}

std::vector<float> YarnFrequencies(double theta, int features, const YarnScaling& scaling) {
  double low = FeatureOf(scaling.beta_fast, theta, features, scaling.original_positions);
  double high = FeatureOf(scaling.beta_slow, theta, features, scaling.original_positions);
  if (scaling.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(features - 1));
  if (low == high) high += 0.001;
  std::vector<float> out(static_cast<size_t>(features / 2));
  for (size_t i = 0; i < out.size(); ++i) {
    const float power = PowerOf(theta, i, 2 * out.size());
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float kept = 1.0f - ramp;
    out[i] =
        1.0f / (static_cast<float>(scaling.factor) * power) * (1.0f - kept) + 1.0f / power * kept;
  }
  return out;
}

double YarnFactor(double scale, double m) {
  return scale <= 1 ? 1.0 : 0.1 * m * std::log(scale) + 1.0;
}

std::vector<float> DividedFrequencies(double theta, const std::vector<float>& factors) {
  std::vector<float> out(factors.size());
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = 1.0f / (factors[i] * PowerOf(theta, i, 2 * out.size()));
  }
  return out;
}

double LongRopeFactor(double scale, int64_t original_positions) {
  if (scale <= 1) return 1.0;
  return std::sqrt(1 + std::log(scale) / std::log(static_cast<double>(original_positions)));
}

}  // namespace lorad::storage
