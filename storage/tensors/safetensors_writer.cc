#include <algorithm>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "storage/tensors/safetensors.h"

namespace lorad::storage {

SafetensorsLayout::SafetensorsLayout(std::vector<TensorEntry> entries,
                                     const std::map<std::string, std::string>& metadata) {
  std::sort(entries.begin(), entries.end(), [](const TensorEntry& a, const TensorEntry& b) {
    const int64_t a_bytes = TensorTypeBytes(a.type), b_bytes = TensorTypeBytes(b.type);
    return a_bytes != b_bytes ? a_bytes > b_bytes : a.name < b.name;
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t offset = 0;
  // Assembled by hand: an ordered_json of n tensors would search n keys n times.
  std::string text = header.dump();
  text.pop_back();
  for (TensorEntry& entry : entries) {
    TensorInfo tensor{std::move(entry.name), entry.type, std::move(entry.shape), offset, 0};
    assert(tensor.name != "__metadata__");
    assert(tensors_.empty() || tensors_.back().name != tensor.name);
    tensor.end = offset + static_cast<uint64_t>(tensor.elements() * TensorTypeBytes(tensor.type));
    offset = tensor.end;
    const nlohmann::ordered_json fields = {{"dtype", std::string(TensorTypeName(tensor.type))},
                                           {"shape", tensor.shape},
                                           {"data_offsets", {tensor.begin, tensor.end}}};
    if (text.size() > 1) text += ',';
    text += nlohmann::json(tensor.name).dump() + ':' + fields.dump();
    tensors_.push_back(std::move(tensor));
  }
  text += '}';
  text.resize((text.size() + 7) / 8 * 8, ' ');

  const uint64_t length = text.size();
  prefix_.resize(8);
  memcpy(prefix_.data(), &length, 8);
  prefix_ += text;
  file_bytes_ = prefix_.size() + offset;
}

SafetensorsWriter::SafetensorsWriter(const SafetensorsLayout& layout, ByteSink sink)
    : layout_(layout), sink_(std::move(sink)) {}

absl::Status SafetensorsWriter::Start() {
  assert(written_ == 0);
  return Append(layout_.prefix());
}

absl::Status SafetensorsWriter::Append(std::string_view bytes) {
  written_ += bytes.size();
  assert(written_ <= layout_.file_bytes());
  return sink_(bytes);
}

absl::Status SafetensorsWriter::Append(const float* values, int64_t count) {
  return Append(
      {reinterpret_cast<const char*>(values), static_cast<size_t>(count) * sizeof(float)});
}

void SafetensorsWriter::Finish() const { assert(written_ == layout_.file_bytes()); }

}  // namespace lorad::storage
