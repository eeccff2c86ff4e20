// Tokenized rows on disk: made once for (dataset, model, max_length, overflow, train_on), then
// mapped.
// Format: docs/formats/dataset.md. A cache may be deleted at any time: it is made again.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/datasets/dataset_encode.h"
#include "storage/files/files.h"

namespace lorad::server::feed {

// Everything that decides the tokens. Its text form is written into the cache.
struct TokenCacheKey {
  std::string dataset_sha256;
  std::string model_fingerprint;  // and the template's, where it has one of its own
  storage::EncodeOptions options;

  std::string ToText() const;
  std::string FileName() const;  // a hash of it
};

struct CachedRow {
  std::span<const int32_t> ids, labels;
  int64_t trained_tokens = 0;
};

// A mapped cache. Immutable: any number of threads.
class TokenCache {
 public:
  // Maps and checks the whole file. NOT_FOUND if there is none; DATA_LOSS where it is damaged or of
  // another key.
  static absl::StatusOr<std::unique_ptr<const TokenCache>> Open(
      const std::string& path, const TokenCacheKey& key,
      storage::Files& files = storage::RealFiles());

  int64_t rows() const { return rows_; }
  int64_t bytes() const { return static_cast<int64_t>(mapping_->bytes().size()); }
  CachedRow row(int64_t row) const;  // REQUIRES: 0 <= row < rows()
  int64_t tokens(int64_t row) const;
  int64_t line(
      int64_t row) const;  // of the dataset's file, from 1; rows of one line have become several
  const storage::DatasetReport& report() const { return report_; }

 private:
  TokenCache() = default;
  absl::Status Check(const TokenCacheKey& key);

  std::unique_ptr<storage::MappedFile> mapping_;
  int64_t rows_ = 0;
  const uint64_t* index_ = nullptr;    // {rows + 1} first token of each row
  const uint64_t* lines_ = nullptr;    // {rows}
  const uint32_t* trained_ = nullptr;  // {rows}
  const int32_t* tokens_ = nullptr;    // ids of row 0, labels of row 0, ids of row 1, ...
  storage::DatasetReport report_;
};

// Tokenizes the dataset into `path` (temporary file, fsync, rename). The report says which rows are
// bad; where any is, no cache is written. CANCELLED once `cancel` is set.
absl::StatusOr<storage::DatasetReport> WriteTokenCache(
    storage::Files& files, const std::string& dataset_path, const storage::TextModel& model,
    const TokenCacheKey& key, const std::string& path, const std::atomic<bool>* cancel = nullptr);

}  // namespace lorad::server::feed
