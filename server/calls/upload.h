// A file that a client sends, on its way to the data directory: written through the storage seam
// piece by piece, removed again unless it was handed over.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/files/files.h"
#include "storage/files/sha256.h"

namespace lorad::server {

class Upload {
 public:
  // `what` it is, for errors: "dataset". `files` must outlive it.
  static absl::StatusOr<Upload> Create(storage::Files& files, const std::string& path,
                                       const std::string& what, int64_t bytes_max);
  Upload(Upload&& other) noexcept;
  Upload& operator=(Upload&&) = delete;
  // Removes the file unless Release() was called.
  ~Upload();

  // RESOURCE_EXHAUSTED: DISK_FULL, or UPLOAD_TOO_LARGE over `bytes_max`. INVALID_ARGUMENT
  // (CHUNK_TOO_LARGE) for a piece over 1 MiB. UNAVAILABLE (UPLOAD_NOT_WRITTEN) for what else the
  // disk says.
  absl::Status Append(const std::string& bytes);

  // Makes it durable and closes it. `size_expected` and `sha256_expected` are compared where given
  // (> 0, not empty): INVALID_ARGUMENT (UPLOAD_INCOMPLETE, UPLOAD_CORRUPT).
  absl::Status Finish(int64_t size_expected, const std::string& sha256_expected);

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  const std::string& sha256() const { return sha256_; }  // after Finish

  // The path; the file is somebody else's from here on.
  std::string Release();

 private:
  Upload(storage::Files& files, std::string path, std::string what, int64_t bytes_max,
         std::unique_ptr<storage::WritableFile> file);

  absl::Status Explain(const absl::Status& status) const;

  storage::Files* files_;
  std::string path_;  // empty: moved from or released
  std::string what_;
  int64_t bytes_max_;
  std::unique_ptr<storage::WritableFile> file_;
  storage::Sha256 hash_;
  int64_t bytes_ = 0;
  std::string sha256_;
};

}  // namespace lorad::server
