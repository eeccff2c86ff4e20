#include "storage/random_weights.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

namespace lorad::storage {
namespace {

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

bool IsNorm(const ModelDescription& description, std::string_view name) {
  return name == description.final_norm.tensor ||
         std::any_of(description.blocks.begin(), description.blocks.end(),
                     [name](const Block& block) { return block.norm.tensor == name; });
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
  if (IsNorm(description, name)) {
    std::fill(out, out + count, 1.0f);
    return;
  }
  const uint64_t key = Mix(seed) ^ Hash(name);
  const float width = 2 * 0.02f * std::sqrt(3.0f);  // of the interval with that deviation
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t bits = Mix(key + static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u);
    out[i] = (static_cast<float>(bits >> 40) * 0x1p-24f - 0.5f) * width;
  }
}

}  // namespace lorad::storage
