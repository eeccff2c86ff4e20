#include "storage/tensors/safetensors_file.h"

#include <algorithm>
#include <cassert>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kReason[] = "SAFETENSORS_INVALID";
constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

absl::Status Shorter(const std::string& path) {
  return Refuse(kReason, absl::StrCat(path, ": has become shorter"));
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path, Files& files) {
  const auto opened = files.OpenToRead(path);
  if (absl::IsInvalidArgument(opened.status())) {
    return Refuse(kReason, std::string(opened.status().message()));
  }
  if (!opened.ok()) return opened.status();
  const absl::StatusOr<uint64_t> size = (*opened)->Size();
  if (!size.ok()) return size.status();
  const auto read = [&](uint64_t bytes) -> absl::StatusOr<std::string> {
    std::string text(bytes, '\0');
    const absl::Status status = (*opened)->ReadAt(0, bytes, text.data());
    if (absl::IsOutOfRange(status)) return Shorter(path);
    if (!status.ok()) return status;
    return text;
  };
  const auto first = read(std::min<uint64_t>(sizeof(uint64_t), *size));
  if (!first.ok()) return first.status();
  const absl::StatusOr<uint64_t> bytes = SafetensorsPrefixBytes(*first, *size);
  if (!bytes.ok()) return At(path, bytes.status());
  auto prefix = read(*bytes);
  if (!prefix.ok()) return prefix.status();
  absl::StatusOr<SafetensorsHeader> header = ParseSafetensorsHeader(*prefix, *size);
  if (!header.ok()) return At(path, header.status());
  SafetensorsFile file(files);
  file.path_ = path;
  file.prefix_ = *std::move(prefix);
  file.header_ = *std::move(header);
  return file;
}

absl::StatusOr<std::string> SafetensorsFile::Read(const TensorInfo& tensor, uint64_t offset,
                                                  uint64_t length) const {
  assert(offset + length <= tensor.bytes());
  absl::StatusOr<std::string> bytes =
      files_->ReadRange(path_, header_.data_begin + tensor.begin + offset, length);
  if (bytes.ok() && bytes->size() != length) return Shorter(path_);
  return bytes;
}

absl::Status SafetensorsFile::Stream(const TensorInfo& tensor, const ByteSink& sink) const {
  // One descriptor a tensor: the kernel reads ahead of it.
  const auto opened = files_->OpenToRead(path_);
  if (!opened.ok()) return opened.status();
  std::string buffer(std::min(kPieceBytes, tensor.bytes()), '\0');
  for (uint64_t offset = 0; offset < tensor.bytes(); offset += kPieceBytes) {
    const uint64_t length = std::min(kPieceBytes, tensor.bytes() - offset);
    absl::Status status =
        (*opened)->ReadAt(header_.data_begin + tensor.begin + offset, length, buffer.data());
    if (absl::IsOutOfRange(status)) return Shorter(path_);
    if (status.ok()) status = sink(std::string_view(buffer).substr(0, length));
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status SafetensorsFile::ReadFloats(const TensorInfo& tensor, float* out) const {
  if (!IsFloatType(tensor.type)) {
    return Refuse(kReason,
                  absl::StrCat(path_, ": tensor ", Quoted(tensor.name), " has type ",
                               Absl(TensorTypeName(tensor.type)), "; F32, F16 and BF16 are read"));
  }
  const int64_t size = TensorTypeBytes(tensor.type);
  return Stream(tensor, [&](std::string_view piece) {
    const int64_t count = static_cast<int64_t>(piece.size()) / size;
    ConvertToFloat(tensor.type, piece.data(), count, out);
    out += count;
    return absl::OkStatus();
  });
}

}  // namespace lorad::storage
