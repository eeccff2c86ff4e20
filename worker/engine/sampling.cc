#include "worker/engine/sampling.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "kernels/cpu/loops.h"
#include "kernels/philox.h"

namespace lorad::worker {
namespace {

// Looked for once: it asks the processor.
const kernels::cpu::Loops& BestLoops() {
  static const kernels::cpu::Loops& best = *kernels::cpu::SupportedLoops().back();
  return best;
}

// In [0, 1), of the token's own counter.
double Uniform(const v1::Sampling& sampling) {
  const auto number = static_cast<uint64_t>(sampling.number());
  const kernels::PhiloxCounter drawn =
      kernels::Philox(sampling.seed(),
                      {{static_cast<uint32_t>(number), static_cast<uint32_t>(number >> 32), 0, 0}});
  const uint64_t bits = uint64_t{drawn.word[1]} << 32 | drawn.word[0];
  return static_cast<double>(bits >> 11) * 0x1p-53;
}

// The first whose sum with those before it exceeds `bound`; rounding may leave none: then the last
// that has any weight.
template <typename IndexAt>
size_t FirstBeyond(double bound, size_t count, const std::vector<double>& weights,
                   IndexAt&& index_at) {
  double sum = 0;
  size_t last = index_at(0);
  for (size_t i = 0; i < count; ++i) {
    const size_t index = index_at(i);
    if (weights[index] <= 0) continue;
    sum += weights[index];
    last = index;
    if (sum > bound) break;
  }
  return last;
}

size_t DrawFromAll(double u, const std::vector<double>& weights) {
  double all = 0;
  for (const double weight : weights) all += weight;
  return FirstBeyond(u * all, weights.size(), weights, [](size_t i) { return i; });
}

size_t DrawFromNucleus(double u, double top_p, const std::vector<double>& weights) {
  double all = 0;
  for (const double weight : weights) all += weight;
  const auto comes_later = [&](size_t a, size_t b) {
    return weights[a] != weights[b] ? weights[a] < weights[b] : a > b;
  };
  // A heap: the nucleus is a few words of many as a rule.
  std::vector<size_t> rest(weights.size());
  for (size_t i = 0; i < rest.size(); ++i) rest[i] = i;
  std::make_heap(rest.begin(), rest.end(), comes_later);
  std::vector<size_t> kept;
  double sum = 0;
  while (!rest.empty() && (kept.empty() || sum < top_p * all)) {
    std::pop_heap(rest.begin(), rest.end(), comes_later);
    kept.push_back(rest.back());
    rest.pop_back();
    sum += weights[kept.back()];
  }
  return FirstBeyond(u * sum, kept.size(), weights, [&](size_t i) { return kept[i]; });
}

}  // namespace

ChosenToken ChooseToken(std::span<const float> logits, const v1::Sampling& sampling) {
  assert(!logits.empty());
  size_t most_likely = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (std::isnan(logits[i])) return {};
    if (logits[i] > logits[most_likely]) most_likely = i;
  }
  if (std::isinf(logits[most_likely])) return {};
  const auto max = static_cast<double>(logits[most_likely]);
  const auto log_probability = [&](size_t token) {
    return static_cast<double>(logits[token]) - max -
           std::log(
               BestLoops().exp_sum_fp64(logits.data(), logits[most_likely], std::ssize(logits)));
  };
  size_t token = most_likely;
  if (sampling.temperature() > 0) {
    std::vector<double> weights(logits.size());
    for (size_t i = 0; i < logits.size(); ++i) {
      weights[i] = std::exp((static_cast<double>(logits[i]) - max) / sampling.temperature());
    }
    const double u = Uniform(sampling);
    const bool all = !(sampling.top_p() > 0 && sampling.top_p() < 1);
    token = all ? DrawFromAll(u, weights) : DrawFromNucleus(u, sampling.top_p(), weights);
  }
  return {.token = static_cast<int32_t>(token), .log_probability = log_probability(token)};
}

}  // namespace lorad::worker
