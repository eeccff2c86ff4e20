#include "client/inputs/unpacker.h"

#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace lorad::client {
namespace {

class Gunzip final : public Unpacker {
 public:
  Gunzip() : ready_(inflateInit2(&zip_, 16 + MAX_WBITS) == Z_OK) {}
  ~Gunzip() override { inflateEnd(&zip_); }
  Gunzip(const Gunzip&) = delete;
  Gunzip& operator=(const Gunzip&) = delete;

  void Give(std::string packed) override {
    packed_ = std::move(packed);
    zip_.next_in = reinterpret_cast<Bytef*>(packed_.data());
    zip_.avail_in = static_cast<uInt>(packed_.size());
  }

  absl::StatusOr<std::string> Unpack() override {
    if (!ready_) return absl::InvalidArgumentError("no memory to unpack it");
    std::string piece(kPieceBytes, '\0');
    zip_.next_out = reinterpret_cast<Bytef*>(piece.data());
    zip_.avail_out = static_cast<uInt>(piece.size());
    while (zip_.avail_out > 0 && (zip_.avail_in > 0 || held_)) {
      if (!open_ && begun_) SkipZeros();
      if (zip_.avail_in == 0 && !open_) break;
      if (!open_) inflateReset(&zip_);  // another member
      begun_ = true;
      const int status = inflate(&zip_, Z_NO_FLUSH);
      if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
        return absl::InvalidArgumentError(absl::StrCat("is no whole gzip file (",
                                                       zip_.msg == nullptr ? "?" : zip_.msg,
                                                       "); gzip -t tells more"));
      }
      open_ = status != Z_STREAM_END;
      held_ = open_ && zip_.avail_out == 0;
    }
    piece.resize(piece.size() - zip_.avail_out);
    return piece;
  }

  bool AtEnd() const override { return !open_; }

 private:
  // Of what fills the last block of a tape, say: behind a member gzip takes it, too.
  void SkipZeros() {
    for (; zip_.avail_in > 0 && *zip_.next_in == 0; --zip_.avail_in) ++zip_.next_in;
  }

  z_stream zip_ = {};
  const bool ready_;
  std::string packed_;
  bool begun_ = false;
  bool open_ = false;  // inside of a member
  bool held_ = false;  // it may have more of what it was given than there was room for
};

class Unzstd final : public Unpacker {
 public:
  Unzstd() : stream_(ZSTD_createDStream()) {
    static_assert(kWindowBytesMax == std::size_t{1} << kWindowLogMax);
    if (stream_ != nullptr) {
      ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kWindowLogMax);
    }
  }

  void Give(std::string packed) override {
    packed_ = std::move(packed);
    in_ = {packed_.data(), packed_.size(), 0};
  }

  absl::StatusOr<std::string> Unpack() override {
    if (stream_ == nullptr) return absl::InvalidArgumentError("no memory to unpack it");
    std::string piece(kPieceBytes, '\0');
    ZSTD_outBuffer out = {piece.data(), piece.size(), 0};
    while (out.pos < out.size && (in_.pos < in_.size || held_)) {
      const std::size_t left = ZSTD_decompressStream(stream_.get(), &out, &in_);
      if (ZSTD_isError(left)) return absl::InvalidArgumentError(WhyNot(left));
      open_ = left > 0;
      held_ = open_ && out.pos == out.size;
    }
    piece.resize(out.pos);
    return piece;
  }

  bool AtEnd() const override { return !open_; }

 private:
  static constexpr int kWindowLogMax = 27;

  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };

  static std::string WhyNot(std::size_t error) {
    if (ZSTD_getErrorCode(error) == ZSTD_error_frameParameter_windowTooLarge) {
      return "is packed with a window of more than 128 MiB; zstd -dc --long=31 FILE | lora dataset "
             "add NAME - unpacks it";
    }
    return absl::StrCat("is no whole zstd file (", ZSTD_getErrorName(error),
                        "); zstd -t tells more");
  }

  std::unique_ptr<ZSTD_DStream, Free> stream_;
  std::string packed_;
  ZSTD_inBuffer in_ = {};
  bool open_ = false;  // inside of a frame
  bool held_ = false;  // as Gunzip's
};

}  // namespace

std::unique_ptr<Unpacker> MakeUnpacker(absl::string_view first) {
  if (absl::StartsWith(first, "\x1f\x8b")) return std::make_unique<Gunzip>();
  // A frame, or one to be skipped (RFC 8878, 3.1), as pzstd writes it in front.
  const bool skipped = first.size() >= 4 && (first[0] & 0xf0) == 0x50 &&
                       first.substr(1, 3) == absl::string_view("\x2a\x4d\x18");
  if (absl::StartsWith(first, "\x28\xb5\x2f\xfd") || skipped) return std::make_unique<Unzstd>();
  return nullptr;
}

}  // namespace lorad::client
