#pragma once

#include <optional>
#include <string_view>

#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// Inverse of TensorTypeName.
std::optional<TensorType> TensorTypeOf(std::string_view name);

}  // namespace lorad::storage
