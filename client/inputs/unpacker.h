#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace lorad::client {

// Takes gzip or zstd off, in pieces, however much they unpack to: beside the piece itself gzip
// takes 64 KiB and zstd at most kWindowBytesMax. Members of a gzip file and frames of zstd may
// follow one another. Errors are INVALID_ARGUMENT with a message that lacks the file's name; after
// one it is of no use. Threads: one.
class Unpacker {
 public:
  virtual ~Unpacker() = default;
  // The next packed bytes. REQUIRES: Unpack has answered "" to those before.
  virtual void Give(std::string packed) = 0;
  // At most kPieceBytes; "" where more packed bytes are needed.
  virtual absl::StatusOr<std::string> Unpack() = 0;
  // Nothing is begun and not ended, so the file may end here.
  virtual bool AtEnd() const = 0;
};

inline constexpr std::size_t kPieceBytes = 256 << 10;
// As much as the program zstd takes without being asked (--long): what its levels 1 to 22 write.
inline constexpr std::size_t kWindowBytesMax = 128 << 20;

// By the first bytes of a file; nullptr where they are those of no packed file.
std::unique_ptr<Unpacker> MakeUnpacker(absl::string_view first);

}  // namespace lorad::client
