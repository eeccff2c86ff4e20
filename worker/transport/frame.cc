#include "worker/transport/frame.h"

#include <cassert>

#include "absl/strings/str_cat.h"

namespace lorad::worker {
namespace {

constexpr std::string_view kMagic = "LORD";

void Append(uint64_t value, int bytes, std::string* to) {
  for (int i = 0; i < bytes; ++i) to->push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t Read(std::string_view bytes, size_t at, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; ++i) {
    value |= uint64_t{static_cast<uint8_t>(bytes[at + static_cast<size_t>(i)])} << (8 * i);
  }
  return value;
}

}  // namespace

std::string BeginFrame(FrameKind kind, std::string_view head, int64_t body_bytes) {
  assert(static_cast<int64_t>(head.size()) <= kFrameHeadBytesMax);
  assert(body_bytes >= 0 && body_bytes <= kFrameBodyBytesMax);
  std::string frame(kMagic);
  Append(static_cast<uint32_t>(kind), 4, &frame);
  Append(head.size(), 4, &frame);
  Append(0, 4, &frame);
  Append(static_cast<uint64_t>(body_bytes), 8, &frame);
  frame.append(head);
  return frame;
}

absl::StatusOr<FrameHeader> ParseFrameHeader(std::string_view bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  if (size != kFrameHeaderBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return absl::InternalError("what came is no frame of a stage");
  }
  const uint64_t kind = Read(bytes, 4, 4);
  const uint64_t head = Read(bytes, 8, 4);
  const uint64_t zero = Read(bytes, 12, 4);
  const uint64_t body = Read(bytes, 16, 8);
  const bool of_tensor = kind == static_cast<uint32_t>(FrameKind::kTensor);
  if (kind < 1 || kind > 4 || zero != 0 || head > kFrameHeadBytesMax ||
      body > (of_tensor ? kFrameBodyBytesMax : 0)) {
    return absl::InternalError(absl::StrCat("a frame of kind ", kind, " with a head of ", head,
                                            " and a body of ", body, " bytes is none of a stage"));
  }
  return FrameHeader{static_cast<FrameKind>(kind), static_cast<int64_t>(head),
                     static_cast<int64_t>(body)};
}

}  // namespace lorad::worker
