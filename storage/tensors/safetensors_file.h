#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/files/files.h"
#include "storage/tensors/safetensors.h"

namespace lorad::storage {

// A safetensors file that is read piece by piece through Files, nothing by a mapping: one that
// becomes shorter (INVALID_ARGUMENT, reason SAFETENSORS_INVALID), and a disk that fails, are
// errors. Checked at Open: all that ParseSafetensorsHeader checks. Keeps no descriptor. Movable;
// const methods are thread-safe; `files` must outlive it.
class SafetensorsFile {
 public:
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path, Files& files = RealFiles());

  const std::string& path() const { return path_; }
  uint64_t file_bytes() const { return header_.data_begin + header_.data_bytes; }
  const SafetensorsHeader& header() const { return header_; }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const TensorInfo* Find(std::string_view name) const { return header_.Find(name); }
  // 8 bytes and the header, as they lie in the file.
  const std::string& prefix() const { return prefix_; }

  // `length` bytes of a tensor from `offset` on. REQUIRES: it has them.
  absl::StatusOr<std::string> Read(const TensorInfo& tensor, uint64_t offset,
                                   uint64_t length) const;
  // Hands the tensor to `sink` in pieces of at most 1 MiB, front to back.
  absl::Status Stream(const TensorInfo& tensor, const ByteSink& sink) const;
  // `out`: tensor.elements() floats. Types F32, F16, BF16; others are refused.
  absl::Status ReadFloats(const TensorInfo& tensor, float* out) const;

 private:
  explicit SafetensorsFile(Files& files) : files_(&files) {}
  Files* files_;  // not owned
  std::string path_;
  std::string prefix_;
  SafetensorsHeader header_;
};

}  // namespace lorad::storage
