// Tokenized rows on disk: made once for (dataset, model, max_length, overflow, train_on), then read
// row by row. Format: docs/formats/dataset.md. A cache may be deleted, cut or overwritten at any
// time: a row that is not as it was written is told, and the cache is made again.
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
#include "storage/files/sha256.h"

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
  int64_t line = 0;  // of the dataset's file, from 1; rows of one line have become several
  int64_t trained_tokens = 0;
  std::vector<int32_t> words;  // its ids, then its labels

  std::span<const int32_t> ids() const { return std::span(words).first(words.size() / 2); }
  std::span<const int32_t> labels() const { return std::span(words).last(words.size() / 2); }
};

// An open cache: its file, and in memory where each row lies, 8 bytes a row. Immutable: any number
// of threads.
class TokenCache {
 public:
  // Reads and checks the whole file. NOT_FOUND if there is none; DATA_LOSS where it is damaged or
  // of another key.
  static absl::StatusOr<std::unique_ptr<const TokenCache>> Open(
      const std::string& path, const TokenCacheKey& key,
      storage::Files& files = storage::RealFiles());

  int64_t rows() const { return static_cast<int64_t>(places_.size()) - 1; }
  int64_t memory_bytes() const { return std::ssize(places_) * int64_t{sizeof(uint64_t)}; }
  int64_t tokens(int64_t row) const;  // REQUIRES: 0 <= row < rows()
  const storage::DatasetReport& report() const { return report_; }

  // The row as it was written, or an error: the file cannot be read, or is not what it was when it
  // was opened (DATA_LOSS). REQUIRES: 0 <= row < rows().
  absl::StatusOr<CachedRow> Read(int64_t row) const;

 private:
  TokenCache() = default;
  absl::Status Check(const TokenCacheKey& key);
  // Everything before `end`, piece by piece.
  absl::Status HashRows(uint64_t end, storage::Sha256* hash) const;

  std::unique_ptr<storage::ReadableFile> file_;
  uint32_t key_checksum_ = 0;
  std::vector<uint64_t> places_ = {0};  // {rows + 1} where each row begins, and the last one ends
  storage::DatasetReport report_;
};

// Tokenizes the dataset into `path` (temporary file, fsync, rename). The report says which rows are
// bad; where any is, no cache is written. Errors of ScanDataset, DATASET_CHANGED among them: the
// file's bytes are not the key's. CANCELLED once `cancel` is set.
absl::StatusOr<storage::DatasetReport> WriteTokenCache(
    storage::Files& files, const std::string& dataset_path, const storage::TextModel& model,
    const TokenCacheKey& key, const std::string& path, const std::atomic<bool>* cancel = nullptr);

}  // namespace lorad::server::feed
