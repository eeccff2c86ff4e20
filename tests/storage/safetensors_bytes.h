#pragma once

#include <cassert>
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// A file from a header's text and data, sound or not.
inline std::string SafetensorsBytes(std::string_view header, std::string_view data) {
  const uint64_t length = header.size();
  std::string bytes(8, '\0');
  memcpy(bytes.data(), &length, 8);
  bytes += header;
  bytes += data;
  return bytes;
}

// A sound file. Tensors of other types than float32 hold zeros; one of float32 holds first, first +
// 1, ... where `first` grows by 1000 a tensor.
inline std::string SafetensorsOf(std::vector<TensorEntry> entries,
                                 const std::map<std::string, std::string>& metadata) {
  const SafetensorsLayout layout(std::move(entries), metadata);
  std::string bytes;
  SafetensorsWriter writer(layout, [&bytes](std::string_view piece) {
    bytes += piece;
    return absl::OkStatus();
  });
  float first = 0;
  assert(writer.Start().ok());
  for (const TensorInfo& tensor : layout.tensors()) {
    if (tensor.type != TensorType::kF32) {
      assert(writer.Append(std::string(tensor.bytes(), '\0')).ok());
      continue;
    }
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    for (size_t i = 0; i < values.size(); ++i) values[i] = first + static_cast<float>(i);
    first += 1000;
    assert(writer.Append(values.data(), tensor.elements()).ok());
  }
  writer.Finish();
  return bytes;
}

}  // namespace lorad::storage
