#pragma once

#include <cstdint>
#include <string_view>

#include "storage/models/model_description.h"

namespace lorad::storage {

// Weights of a model that has a seed instead of files (tools and benchmarks): a function of tensor
// name and seed alone. Norms multiply by 1, all else is uniform with standard deviation 0.02
// (transformers' initializer_range). REQUIRES: `name` is one of AllTensors(description); `out`
// holds it.
void FillRandomWeight(const ModelDescription& description, std::string_view name, uint64_t seed,
                      float* out);

}  // namespace lorad::storage
