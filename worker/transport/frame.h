// How bytes on a connection between stages are cut:
//
//   0   magic      "LORD"
//   4   kind       1 hello, 2 note, 3 tensor, 4 room: the other side has memory for the next tensor
//   8   head       bytes of the head: a StageHello, a note, a StagePassage, the memory's name
//   12  zero
//   16  body       bytes of the body: the rows of a tensor that are not there already; else 0
//   24  head, then body
//
// Integers are little-endian.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace lorad::worker {

enum class FrameKind : uint32_t { kHello = 1, kNote = 2, kTensor = 3, kRoom = 4 };

inline constexpr int64_t kFrameHeaderBytes = 24;
inline constexpr int64_t kFrameHeadBytesMax = 1 << 20;
inline constexpr int64_t kFrameBodyBytesMax = int64_t{1} << 40;

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  int64_t head_bytes = 0;
  int64_t body_bytes = 0;
};

// Header and head; the body follows. REQUIRES: within the limits.
std::string BeginFrame(FrameKind kind, std::string_view head, int64_t body_bytes);
// INTERNAL where these are not kFrameHeaderBytes of a header.
absl::StatusOr<FrameHeader> ParseFrameHeader(std::string_view bytes);

}  // namespace lorad::worker
