#include "sizes/bytes_text.h"

namespace lorad::sizes {
namespace {

constexpr int64_t kKiB = int64_t{1} << 10, kMiB = int64_t{1} << 20, kGiB = int64_t{1} << 30;

std::string Text(int64_t bytes, bool up) {
  const int64_t unit = bytes < kMiB ? kKiB : kMiB;
  return std::to_string((bytes + (up ? unit - 1 : 0)) / unit) + (unit == kKiB ? " KiB" : " MiB");
}

}  // namespace

std::string NeededText(int64_t bytes) { return Text(bytes, true); }

std::string ThereText(int64_t bytes) { return Text(bytes, false); }

std::string MemoryText(int64_t bytes) {
  if (bytes < kGiB) return ThereText(bytes);
  const int64_t tenths = (10 * bytes + kGiB / 2) / kGiB;
  return std::to_string(tenths / 10) + "." + std::to_string(tenths % 10) + " GiB";
}

}  // namespace lorad::sizes
