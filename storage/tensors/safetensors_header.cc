#include "storage/tensors/safetensors_header.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr char kReason[] = "SAFETENSORS_INVALID";
constexpr size_t kDimensionLimit = 16;

absl::Status Invalid(std::string_view message) { return Refuse(kReason, message); }

// Reads the header's JSON as events, so that duplicate keys are seen and no tree is built:
// {"__metadata__": {string: string}, NAME: {"dtype": string, "shape": [n...], "data_offsets": [n,
// n]}}
class HeaderReader : public nlohmann::json_sax<nlohmann::json> {
 public:
  absl::Status status;
  SafetensorsHeader header;

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_integer(number_integer_t) override { return Unexpected("a negative number"); }
  bool number_float(number_float_t, const string_t& text) override {
    return Unexpected(absl::StrCat("the number ", text));
  }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (tensor_.shape.size() == kDimensionLimit) {
        return Fail(absl::StrCat("tensor ", Quoted(tensor_.name), " has more than ",
                                 kDimensionLimit, " dimensions"));
      }
      if (value > static_cast<uint64_t>(INT64_MAX)) return Unexpected("a size over 2^63");
      tensor_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offsets_ < 2) {
      (offsets_++ == 0 ? tensor_.begin : tensor_.end) = value;
      return true;
    }
    return Unexpected(absl::StrCat("the number ", value));
  }

  bool string(string_t& value) override {
    if (place_ == Place::kMetadata && !key_.empty()) {
      header.metadata[std::exchange(key_, "").substr(1)] = value;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "dtype") {
      const std::optional<TensorType> type = TensorTypeOf(value);
      if (!type) {
        return Fail(
            absl::StrCat("tensor ", Quoted(tensor_.name), " has the unknown type ", Quoted(value)));
      }
      tensor_.type = *type;
      key_.clear();
      return true;
    }
    return Unexpected(absl::StrCat("the string ", Quoted(value)));
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = tensor_.name == "__metadata__" ? Place::kMetadata : Place::kTensor;
        key_.clear();
        fields_.clear();
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) {
      if (!names_.insert(name).second) {
        return Fail(absl::StrCat("duplicate key ", Quoted(name)));
      }
      if (names_.size() > kSafetensorsTensorLimit) {
        return Fail(absl::StrCat("more than ", kSafetensorsTensorLimit, " tensors"));
      }
      tensor_ = TensorInfo{};
      tensor_.name = name;
      offsets_ = 0;
      return true;
    }
    if (!fields_.insert(name).second) {
      return Fail(absl::StrCat("duplicate key ", Quoted(name), " in ", Quoted(tensor_.name)));
    }
    if (place_ == Place::kMetadata) {
      key_ = "=" + name;  // a key may be empty; the mark says that its value is awaited
      return true;
    }
    if (name != "dtype" && name != "shape" && name != "data_offsets") {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor_.name), " has the unknown field ", Quoted(name)));
    }
    key_ = name;
    return true;
  }

  bool end_object() override {
    if (place_ == Place::kTensor) {
      if (fields_.size() != 3) {
        return Fail(absl::StrCat("tensor ", Quoted(tensor_.name),
                                 " needs each of dtype, shape and data_offsets"));
      }
      header.tensors.push_back(std::move(tensor_));
    }
    place_ = place_ == Place::kTop ? Place::kEnd : Place::kTop;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kTensor && key_ == "shape") {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kTensor && key_ == "data_offsets") {
      place_ = Place::kOffsets;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_ != 2) {
      return Fail(
          absl::StrCat("tensor ", Quoted(tensor_.name), ": data_offsets needs two numbers"));
    }
    place_ = Place::kTensor;
    key_.clear();
    return true;
  }

  bool parse_error(std::size_t position, const std::string&,
                   const nlohmann::json::exception&) override {
    return Fail(absl::StrCat("the header is not JSON (near byte ", position, " of it)"));
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kTensor, kShape, kOffsets, kEnd };

  bool Fail(std::string_view message) {
    if (status.ok()) status = Invalid(message);
    return false;
  }

  bool Unexpected(std::string_view what) {
    const std::string where = place_ == Place::kStart || place_ == Place::kEnd
                                  ? std::string("the header")
                                  : Quoted(tensor_.name);
    return Fail(absl::StrCat("unexpected: ", Absl(what), " in ", where));
  }

  Place place_ = Place::kStart;
  TensorInfo tensor_;
  std::string key_;  // whose value is awaited, inside a tensor or (after "=") the metadata
  int offsets_ = 0;
  std::set<std::string> names_;
  std::set<std::string> fields_;
};

// Shape x type must be the number of bytes; no product may overflow.
absl::Status CheckSize(const TensorInfo& tensor, uint64_t data_bytes) {
  if (tensor.begin > tensor.end || tensor.end > data_bytes) {
    return Invalid(absl::StrCat("tensor ", Quoted(tensor.name), " lies at bytes [", tensor.begin,
                                ", ", tensor.end, ") of a data section of ", data_bytes,
                                " bytes: bytes are missing or the header is wrong"));
  }
  int64_t bytes = TensorTypeBytes(tensor.type);
  for (const int64_t size : tensor.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) {
      return Invalid(absl::StrCat("tensor ", Quoted(tensor.name), ": shape ",
                                  ShapeString(tensor.shape), " is too large"));
    }
  }
  if (static_cast<uint64_t>(bytes) != tensor.bytes()) {
    return Invalid(absl::StrCat("tensor ", Quoted(tensor.name), " has ", tensor.bytes(),
                                " bytes, but shape ", ShapeString(tensor.shape), " of ",
                                Absl(TensorTypeName(tensor.type)), " needs ", bytes));
  }
  return absl::OkStatus();
}

// The tensors cover the data section: each begins where the one before it ends. Returns where the
// last ends.
absl::StatusOr<uint64_t> CheckCover(const std::vector<TensorInfo>& tensors) {
  std::vector<const TensorInfo*> order;
  order.reserve(tensors.size());
  for (const TensorInfo& tensor : tensors) order.push_back(&tensor);
  std::sort(order.begin(), order.end(), [](const TensorInfo* a, const TensorInfo* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  });
  uint64_t covered = 0;
  for (const TensorInfo* tensor : order) {
    if (tensor->begin < covered) {
      return Invalid(absl::StrCat("tensor ", Quoted(tensor->name),
                                  " overlaps the one before it: it begins at byte ", tensor->begin,
                                  ", the other ends at ", covered));
    }
    if (tensor->begin > covered) {
      return Invalid(absl::StrCat("bytes [", covered, ", ", tensor->begin, ") before tensor ",
                                  Quoted(tensor->name), " belong to no tensor"));
    }
    covered = tensor->end;
  }
  return covered;
}

}  // namespace

absl::StatusOr<uint64_t> SafetensorsPrefixBytes(std::string_view first, uint64_t file_bytes) {
  if (first.size() < 8 || file_bytes < 8) {
    return Invalid(absl::StrCat("a safetensors file has at least 8 bytes, this one has ",
                                std::min<uint64_t>(first.size(), file_bytes)));
  }
  uint64_t length;
  memcpy(&length, first.data(), 8);
  if (length > kSafetensorsHeaderLimit) {
    return Invalid(absl::StrCat("the header is said to have ", length, " bytes; the limit is ",
                                kSafetensorsHeaderLimit, " (is this a safetensors file at all?)"));
  }
  if (length > file_bytes - 8) {
    return Invalid(absl::StrCat("the header is said to have ", length,
                                " bytes and is longer than the file, which has ", file_bytes,
                                ": it was cut off, or is no safetensors file"));
  }
  return 8 + length;
}

absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view prefix,
                                                         uint64_t file_bytes) {
  const absl::StatusOr<uint64_t> prefix_bytes = SafetensorsPrefixBytes(prefix, file_bytes);
  if (!prefix_bytes.ok()) return prefix_bytes.status();
  assert(prefix.size() >= *prefix_bytes);
  const std::string_view text = prefix.substr(8, *prefix_bytes - 8);
  if (text.empty() || text[0] != '{') return Invalid("the header does not begin with '{'");

  HeaderReader reader;
  if (!nlohmann::json::sax_parse(text, &reader)) {
    return reader.status.ok() ? Invalid("the header is not JSON") : reader.status;
  }
  SafetensorsHeader header = std::move(reader.header);
  header.data_begin = *prefix_bytes;
  header.data_bytes = file_bytes - *prefix_bytes;
  for (const TensorInfo& tensor : header.tensors) {
    if (absl::Status status = CheckSize(tensor, header.data_bytes); !status.ok()) return status;
  }
  const absl::StatusOr<uint64_t> covered = CheckCover(header.tensors);
  if (!covered.ok()) return covered.status();
  if (file_bytes == kUnknownFileBytes) {
    header.data_bytes = *covered;
  } else if (*covered != header.data_bytes) {
    return Invalid(absl::StrCat("bytes [", *covered, ", ", header.data_bytes,
                                ") at the end of the data belong to no tensor"));
  }
  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return a.name < b.name; });
  return header;
}

}  // namespace lorad::storage
