// Any bytes as a safetensors file: refused, or every tensor lies inside the file and the writer
// gives back a header that means the same.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "storage/tensors/safetensors.h"

namespace lorad::storage {
namespace {

void CheckSound(const SafetensorsHeader& header, std::string_view file) {
  uint64_t bytes = 0;
  std::vector<TensorEntry> entries;
  for (const TensorInfo& tensor : header.tensors) {
    assert(header.Find(tensor.name) == &tensor);
    assert(header.data_begin + tensor.end <= file.size());
    assert(static_cast<uint64_t>(tensor.elements() * TensorTypeBytes(tensor.type)) ==
           tensor.bytes());
    bytes += tensor.bytes();
    if (IsFloatType(tensor.type)) {
      std::vector<float> values(static_cast<size_t>(tensor.elements()));
      ConvertToFloat(tensor.type, file.data() + header.data_begin + tensor.begin, tensor.elements(),
                     values.data());
    }
    if (tensor.name != "__metadata__") entries.push_back({tensor.name, tensor.type, tensor.shape});
  }
  assert(header.data_begin + bytes == file.size());

  const SafetensorsLayout layout(entries, header.metadata);
  const auto again = ParseSafetensorsHeader(layout.prefix(), layout.file_bytes());
  assert(again.ok());
  assert(again->metadata == header.metadata);
  assert(again->tensors.size() == entries.size());
  for (const TensorEntry& entry : entries) assert(again->Find(entry.name)->shape == entry.shape);
}

}  // namespace
}  // namespace lorad::storage

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace lorad::storage;
  const std::string_view file(reinterpret_cast<const char*>(data), size);
  const auto prefix = SafetensorsPrefixBytes(file, file.size());
  if (!prefix.ok()) return 0;
  assert(*prefix <= file.size());
  const auto header = ParseSafetensorsHeader(file, file.size());
  if (header.ok()) CheckSound(*header, file);
  // As a stream, whose length is not known.
  const auto streamed = ParseSafetensorsHeader(file.substr(0, *prefix), kUnknownFileBytes);
  assert(streamed.ok() || !header.ok());
  return 0;
}
