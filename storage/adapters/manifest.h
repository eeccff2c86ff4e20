// What a directory held when it was complete: "manifest.json" beside its files, with the size and
// the sha256 of each. By it damage at rest is found.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/files/files.h"

namespace lorad::storage {

inline constexpr char kManifestFile[] = "manifest.json";

struct ListedFile {
  std::string name;
  uint64_t size_bytes = 0;
  std::string sha256;
};

std::string ManifestText(const std::vector<ListedFile>& files);

// The directory's, sorted by name. NOT_FOUND where it has none; INVALID_ARGUMENT
// (CHECKPOINT_INVALID) where it is not one.
absl::StatusOr<std::vector<ListedFile>> ReadManifest(Files& files, const std::string& directory);

// What the directory's manifest says of a file; "" where it has none, as adapters that older
// versions imported. INVALID_ARGUMENT likewise, also where it does not list the file.
absl::StatusOr<std::string> ListedSha256(Files& files, const std::string& directory,
                                         std::string_view name);

// The sha256 of a file.
absl::StatusOr<std::string> HashOf(Files& files, const std::string& path);

// DATA_LOSS, reason CHECKPOINT_CORRUPT: what was whole once is damaged.
absl::Status Corrupt(std::string_view message);

// OK, or Corrupt where the file `path` does not have the sha256 that is listed, if one is.
absl::Status CheckListed(const std::string& path, const std::string& sha256,
                         const std::string& listed);

}  // namespace lorad::storage
