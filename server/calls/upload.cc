#include "server/calls/upload.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "server/errors/errors.h"
#include "server/validation/limits.h"

namespace lorad::server {
namespace {

constexpr int64_t kRetryMs = 1000;

}  // namespace

Upload::Upload(storage::Files& files, std::string path, std::string what, int64_t bytes_max,
               std::unique_ptr<storage::WritableFile> file)
    : files_(&files),
      path_(std::move(path)),
      what_(std::move(what)),
      bytes_max_(bytes_max),
      file_(std::move(file)) {}

absl::StatusOr<Upload> Upload::Create(storage::Files& files, const std::string& path,
                                      const std::string& what, int64_t bytes_max) {
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> file = files.Create(path);
  Upload upload(files, path, what, bytes_max, nullptr);
  if (!file.ok()) return upload.Explain(file.status());
  upload.file_ = *std::move(file);
  return upload;
}

Upload::Upload(Upload&& other) noexcept
    : files_(other.files_),
      path_(std::exchange(other.path_, "")),
      what_(std::move(other.what_)),
      bytes_max_(other.bytes_max_),
      file_(std::move(other.file_)),
      hash_(std::move(other.hash_)),
      bytes_(other.bytes_),
      sha256_(std::move(other.sha256_)) {}

Upload::~Upload() {
  if (path_.empty()) return;
  file_.reset();
  // A file that cannot be removed now is removed when the daemon starts again.
  (void)storage::RemoveTree(*files_, path_);
}

absl::Status Upload::Explain(const absl::Status& status) const {
  if (status.ok()) return status;
  const std::string message = absl::StrCat(
      "the ", what_,
      " could not be stored, and nothing was kept of it: ", std::string(status.message()));
  if (absl::IsResourceExhausted(status)) return Error(status.code(), "DISK_FULL", message);
  // Whatever the disk says, it is not the sender's doing, and may be mended.
  return Unavailable("UPLOAD_NOT_WRITTEN", message, kRetryMs);
}

absl::Status Upload::Append(const std::string& bytes) {
  if (bytes.size() > kChunkBytesMax) {
    return Error(
        absl::StatusCode::kInvalidArgument, "CHUNK_TOO_LARGE",
        absl::StrCat("a chunk must have at most ", kChunkBytesMax, " bytes, got ", bytes.size()));
  }
  bytes_ += static_cast<int64_t>(bytes.size());
  if (bytes_ > bytes_max_) {
    return LimitExceeded("UPLOAD_TOO_LARGE", what_,
                         absl::StrCat("the ", what_, " has more than ", bytes_max_, " bytes"));
  }
  hash_.Update(bytes);
  return Explain(file_->Append(bytes));
}

absl::Status Upload::Finish(int64_t size_expected, const std::string& sha256_expected) {
  if (absl::Status status = Explain(file_->Sync()); !status.ok()) return status;
  if (absl::Status status = Explain(file_->Close()); !status.ok()) return status;
  file_.reset();
  sha256_ = hash_.HexDigest();
  if (size_expected > 0 && size_expected != bytes_) {
    return Error(absl::StatusCode::kInvalidArgument, "UPLOAD_INCOMPLETE",
                 absl::StrCat("the ", what_, " should have ", size_expected, " bytes, got ", bytes_,
                              ": send it again"));
  }
  if (!sha256_expected.empty() && sha256_expected != sha256_) {
    return Error(absl::StatusCode::kInvalidArgument, "UPLOAD_CORRUPT",
                 absl::StrCat("the ", what_, " should have sha256 ", sha256_expected, ", got ",
                              sha256_, ": send it again"));
  }
  return absl::OkStatus();
}

std::string Upload::Release() { return std::exchange(path_, ""); }

}  // namespace lorad::server
