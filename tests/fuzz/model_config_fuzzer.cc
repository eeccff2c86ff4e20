// Any bytes as a config.json: refused, or a table that is consistent.

#include <cassert>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "storage/models/model_description.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lorad::storage;
  const auto model = DescribeModel({reinterpret_cast<const char*>(data), size});
  if (!model.ok()) return 0;
  assert(model->blocks.size() == 2 * static_cast<size_t>(model->layers));
  assert(ParameterCount(*model) > 0);
  const auto& attention = std::get<AttentionSpec>(model->blocks[0].mixer);
  assert(attention.heads % attention.kv_heads == 0);
  for (const float frequency : attention.rope.inverse_frequencies) assert(std::isfinite(frequency));
  return 0;
}
