#include "storage/tensors/safetensors.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cassert>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/tensors/safetensors_header.h"

namespace lorad::storage {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

struct TypeRow {
  TensorType type;
  std::string_view name;
  int64_t bytes;
};

constexpr std::array<TypeRow, 15> kTypes = {{
    {TensorType::kBool, "BOOL", 1},
    {TensorType::kU8, "U8", 1},
    {TensorType::kI8, "I8", 1},
    {TensorType::kF8E4M3, "F8_E4M3", 1},
    {TensorType::kF8E5M2, "F8_E5M2", 1},
    {TensorType::kI16, "I16", 2},
    {TensorType::kU16, "U16", 2},
    {TensorType::kF16, "F16", 2},
    {TensorType::kBF16, "BF16", 2},
    {TensorType::kI32, "I32", 4},
    {TensorType::kU32, "U32", 4},
    {TensorType::kF32, "F32", 4},
    {TensorType::kI64, "I64", 8},
    {TensorType::kU64, "U64", 8},
    {TensorType::kF64, "F64", 8},
}};

const TypeRow& RowOf(TensorType type) {
  const auto row = std::find_if(kTypes.begin(), kTypes.end(),
                                [type](const TypeRow& each) { return each.type == type; });
  assert(row != kTypes.end());
  return *row;
}

// Exact, without a branch: exponent and fraction in their places, then scaled by the difference of
// the biases, which also normalizes a subnormal; infinity and NaN get the exponent of theirs.
float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7FFF;
  const float scaled = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7C00 ? 0x7F800000u : 0;
  return std::bit_cast<float>(sign | special | std::bit_cast<uint32_t>(scaled));
}

float BfloatToFloat(uint16_t bits) {
  return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

// In blocks of fixed size, which the compiler turns into vector instructions. `in` need not be
// aligned.
template <typename Convert>
void ConvertHalves(Convert convert, const char* in, int64_t count, float* out) {
  constexpr int64_t kBlock = 32;
  std::array<uint16_t, kBlock> halves{};
  std::array<float, kBlock> floats;
  int64_t at = 0;
  for (; at + kBlock <= count; at += kBlock) {
    memcpy(halves.data(), in + 2 * at, sizeof(halves));
    for (size_t i = 0; i < kBlock; ++i) floats[i] = convert(halves[i]);
    memcpy(out + at, floats.data(), sizeof(floats));
  }
  for (; at < count; ++at) {
    memcpy(halves.data(), in + 2 * at, sizeof(halves[0]));
    out[at] = convert(halves[0]);
  }
}

}  // namespace

std::string_view TensorTypeName(TensorType type) { return RowOf(type).name; }
int64_t TensorTypeBytes(TensorType type) { return RowOf(type).bytes; }

std::optional<TensorType> TensorTypeOf(std::string_view name) {
  for (const TypeRow& row : kTypes) {
    if (row.name == name) return row.type;
  }
  return std::nullopt;
}

int64_t TensorInfo::elements() const {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

std::string ShapeString(const std::vector<int64_t>& shape) {
  std::string text = "[";
  for (size_t i = 0; i < shape.size(); ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", shape[i]);
  return text + "]";
}

const TensorInfo* SafetensorsHeader::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors.begin(), tensors.end(), name,
      [](const TensorInfo& tensor, std::string_view n) { return tensor.name < n; });
  return found != tensors.end() && found->name == name ? &*found : nullptr;
}

bool IsFloatType(TensorType type) {
  return type == TensorType::kF32 || type == TensorType::kF16 || type == TensorType::kBF16;
}

void ConvertToFloat(TensorType type, const char* in, int64_t count, float* out) {
  assert(IsFloatType(type));
  switch (type) {
    case TensorType::kF32:
      if (count > 0) memcpy(out, in, static_cast<size_t>(count) * sizeof(float));
      return;
    case TensorType::kBF16:
      ConvertHalves([](uint16_t bits) { return BfloatToFloat(bits); }, in, count, out);
      return;
    default:
      ConvertHalves([](uint16_t bits) { return HalfToFloat(bits); }, in, count, out);
  }
}

}  // namespace lorad::storage
