// The frequencies of rotary embeddings, in float32 as transformers computes them.
#pragma once

#include <cstdint>
#include <vector>

namespace lorad::storage {

// theta^(-2i/R), i < R/2. Su et al. 2021 (arXiv 2104.09864).
std::vector<float> InverseFrequencies(double theta, int features);

struct Llama3Scaling {
  float factor = 1;
  float low_freq_factor = 1;
  float high_freq_factor = 1;
  float original_positions = 1;
};
// Llama 3.1's rule: long waves slowed by `factor`, short ones kept, a linear blend between.
float ScaleLlama3(float frequency, const Llama3Scaling& scaling);

struct YarnScaling {
  double factor = 1;
  double beta_fast = 32;
  double beta_slow = 1;
  int64_t original_positions = 1;
  bool truncate = true;  // the blend's borders are whole features
};
// Frequencies whose waves turn more than beta_fast times in the original positions are kept, those
// that turn less than beta_slow times divided by `factor`, a linear blend over features between.
// Peng et al. 2023 (arXiv 2309.00071), section 3.2.
std::vector<float> YarnFrequencies(double theta, int features, const YarnScaling& scaling);
// What cosines and sines are multiplied by, where the config does not say it: 0.1 m ln(s) + 1 for s
// over 1, else 1. The same paper, section 3.4.
double YarnFactor(double scale, double m = 1);

// theta^(-2i/R) / factors[i]. Ding et al. 2024 (arXiv 2402.13753).
std::vector<float> DividedFrequencies(double theta, const std::vector<float>& factors);
// sqrt(1 + ln(s) / ln(original positions)) for s over 1, else 1.
double LongRopeFactor(double scale, int64_t original_positions);

}  // namespace lorad::storage
