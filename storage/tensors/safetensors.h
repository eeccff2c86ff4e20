#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::storage {

// The safetensors format: docs/formats/safetensors.md. Errors about a file's content are
// INVALID_ARGUMENT, reason SAFETENSORS_INVALID.

enum class TensorType {
  kBool,
  kU8,
  kI8,
  kF8E4M3,
  kF8E5M2,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kI64,
  kU64,
  kF64
};

// "F32", "BF16", ...: as the header spells it.
std::string_view TensorTypeName(TensorType type);
int64_t TensorTypeBytes(TensorType type);

struct TensorInfo {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // in the data section
  uint64_t end = 0;

  int64_t elements() const;
  uint64_t bytes() const { return end - begin; }
};

// "[49152, 576]"
std::string ShapeString(const std::vector<int64_t>& shape);

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // sorted by name
  std::map<std::string, std::string> metadata;
  uint64_t data_begin = 0;  // in the file
  uint64_t data_bytes = 0;

  // nullptr if there is none.
  const TensorInfo* Find(std::string_view name) const;
};

inline constexpr uint64_t kSafetensorsHeaderLimit = uint64_t{100} << 20;  // as the reference has it
inline constexpr size_t kSafetensorsTensorLimit = 1'000'000;

// The length of a stream that is not known beforehand: the data section then ends with the last
// tensor.
inline constexpr uint64_t kUnknownFileBytes = UINT64_MAX;

// Length of the prefix (8 bytes + header) of a file of `file_bytes` that begins with `first` (at
// least 8 bytes, else refused): what a stream must have read before it can parse the header.
absl::StatusOr<uint64_t> SafetensorsPrefixBytes(std::string_view first, uint64_t file_bytes);

// `prefix`: at least SafetensorsPrefixBytes of the file. Checked: lengths, JSON, duplicate keys,
// types, shapes (no overflow), shape x type = bytes, and that the tensors cover the data section
// without hole or overlap (with kUnknownFileBytes: up to the end of the last).
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view prefix,
                                                         uint64_t file_bytes);

// F32, F16 or BF16.
bool IsFloatType(TensorType type);

// Converts `count` elements of type F32, F16 or BF16 (asserted) to float32, exactly.
void ConvertToFloat(TensorType type, const char* in, int64_t count, float* out);

// One tensor of a file to be written.
struct TensorEntry {
  std::string name;
  TensorType type = TensorType::kF32;
  std::vector<int64_t> shape;
};

using ByteSink = std::function<absl::Status(std::string_view)>;

// The layout of a file before any tensor's bytes are at hand. Deterministic, and byte for byte what
// the reference implementation writes: tensors by element size downwards, then by name; metadata
// first; header padded with spaces to a multiple of 8.
class SafetensorsLayout {
 public:
  // REQUIRES: names differ, none is "__metadata__" (asserted).
  SafetensorsLayout(std::vector<TensorEntry> entries,
                    const std::map<std::string, std::string>& metadata);
  const std::string& prefix() const { return prefix_; }                // 8 bytes + header
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in the order of the file
  uint64_t file_bytes() const { return file_bytes_; }

 private:
  std::string prefix_;
  std::vector<TensorInfo> tensors_;
  uint64_t file_bytes_ = 0;
};

// Writes a file through `sink`, holding no tensor: Start, then the bytes of layout.tensors() one
// after the other (in any pieces), then Finish (asserts that all came).
class SafetensorsWriter {
 public:
  // `layout` and `sink` must outlive the writer.
  SafetensorsWriter(const SafetensorsLayout& layout, ByteSink sink);
  absl::Status Start();
  absl::Status Append(std::string_view bytes);
  absl::Status Append(const float* values, int64_t count);
  void Finish() const;

 private:
  const SafetensorsLayout& layout_;
  ByteSink sink_;
  uint64_t written_ = 0;
};

}  // namespace lorad::storage
