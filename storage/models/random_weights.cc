#include "storage/models/random_weights.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <optional>
#include <thread>
#include <vector>

namespace lorad::storage {
namespace {

constexpr int64_t kStretchMin = int64_t{1} << 20;  // elements worth a thread

// FNV-1a, 64 bits: the name's part in the key.
uint64_t Hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

// SplitMix64's output function (Steele, Lea, Flood 2014).
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// What a norm's tensor holds where its weight is 1; none where it is no norm.
std::optional<float> UnitNorm(const ModelDescription& description, std::string_view name) {
  for (const NormSpec& norm : AllNorms(description)) {
    if (norm.tensor == name) return static_cast<float>(1.0 - norm.offset);
  }
  return std::nullopt;
}

// Elements [first, end) of a tensor.
void FillUniform(uint64_t key, int64_t first, int64_t end, float* out) {
  const float width = 2 * 0.02f * std::sqrt(3.0f);  // of the interval with that deviation
  for (int64_t i = first; i < end; ++i) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
    out[i] = (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f) * width;
  }
}

}  // namespace

void FillRandomWeight(const ModelDescription& description, std::string_view name, uint64_t seed,
                      float* out) {
  const std::vector<NamedShape> tensors = AllTensors(description);
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [name](const NamedShape& each) { return each.name == name; });
  assert(found != tensors.end());
  int64_t count = 1;
  for (const int64_t size : found->shape) count *= size;
  if (const std::optional<float> unit = UnitNorm(description, name); unit) {
    std::fill(out, out + count, *unit);
    return;
  }
  const uint64_t key = Mix(seed) ^ Hash(name);
  const auto threads = static_cast<int64_t>(std::thread::hardware_concurrency());
  const int64_t stretches =
      std::clamp<int64_t>(count / kStretchMin, 1, std::max<int64_t>(threads, 1));
  std::vector<std::thread> others;
  for (int64_t i = 1; i < stretches; ++i) {
    others.emplace_back(FillUniform, key, count * i / stretches, count * (i + 1) / stretches, out);
  }
  FillUniform(key, 0, count / stretches, out);
  for (std::thread& other : others) other.join();
}

}  // namespace lorad::storage
