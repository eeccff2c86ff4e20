#include "storage/tensors/safetensors_reader.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

absl::Status Shorter(const std::string& path) {
  return Refuse("SAFETENSORS_INVALID", absl::StrCat(path, ": has become shorter"));
}

}  // namespace

absl::StatusOr<SafetensorsReader> SafetensorsReader::Open(const std::string& path, Files& files) {
  const absl::StatusOr<uint64_t> size = files.Size(path);
  if (!size.ok()) return size.status();
  const absl::StatusOr<std::string> first = files.ReadRange(path, 0, sizeof(uint64_t));
  if (!first.ok()) return first.status();
  const absl::StatusOr<uint64_t> bytes = SafetensorsPrefixBytes(*first, *size);
  if (!bytes.ok()) return At(path, bytes.status());
  absl::StatusOr<std::string> prefix = files.ReadRange(path, 0, *bytes);
  if (!prefix.ok()) return prefix.status();
  if (prefix->size() != *bytes) return Shorter(path);
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*prefix, *size);
  if (!header.ok()) return At(path, header.status());
  SafetensorsReader reader(files);
  reader.path_ = path;
  reader.prefix_ = *std::move(prefix);
  reader.header_ = *std::move(header);
  return reader;
}

absl::StatusOr<std::string> SafetensorsReader::Read(const TensorInfo& tensor, uint64_t offset,
                                                    uint64_t length) const {
  assert(offset + length <= tensor.bytes());
  absl::StatusOr<std::string> bytes =
      files_->ReadRange(path_, header_.data_begin + tensor.begin + offset, length);
  if (bytes.ok() && bytes->size() != length) return Shorter(path_);
  return bytes;
}

absl::Status SafetensorsReader::Stream(const TensorInfo& tensor, const ByteSink& sink) const {
  for (uint64_t offset = 0; offset < tensor.bytes(); offset += kPieceBytes) {
    const absl::StatusOr<std::string> piece =
        Read(tensor, offset, std::min(kPieceBytes, tensor.bytes() - offset));
    if (!piece.ok()) return piece.status();
    if (absl::Status status = sink(*piece); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace lorad::storage
