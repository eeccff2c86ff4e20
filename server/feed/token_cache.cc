#include "server/feed/token_cache.h"

#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/sha256.h"

namespace lorad::server::feed {
namespace {

using nlohmann::json;
using storage::Absl;
using storage::Files;
using storage::Sha256;

static_assert(std::endian::native == std::endian::little, "the cache is mapped as it lies");

// Its number rises where rows become other tokens or labels than before, or the layout another one:
// older caches are made again.
constexpr std::string_view kMagic = "LORADTK3";
constexpr size_t kHashBytes = 64;
constexpr size_t kBufferBytes = 1 << 20;

// The last bytes of a cache, before the hash.
struct Footer {
  uint64_t rows = 0;
  uint64_t tokens = 0;
  uint64_t metadata_bytes = 0;
};

template <class T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

std::string Metadata(const TokenCacheKey& key, const storage::DatasetReport& report) {
  json metadata = {{"key", key.ToText()},
                   {"format", static_cast<int>(*report.format)},
                   {"size_bytes", report.size_bytes},
                   {"tokens", report.tokens},
                   {"trained_tokens", report.trained_tokens},
                   {"truncated_rows", report.truncated_rows},
                   {"rows", report.rows},
                   {"skipped_rows", report.skipped_rows},
                   {"longest_tokens", report.longest_tokens}};
  return metadata.dump();
}

// Appends to a file through a buffer, hashing what passes.
class CacheWriter {
 public:
  explicit CacheWriter(storage::WritableFile& file) : file_(file) {}

  void Append(std::string_view bytes) {
    written_ += bytes.size();
    buffer_.append(bytes);
    if (buffer_.size() >= kBufferBytes) Flush();
  }
  void PadTo8() { Append(std::string((8 - written_ % 8) % 8, '\0')); }
  void AppendHash() {
    Flush();
    buffer_ = hash_.HexDigest();
    if (status_.ok()) status_ = file_.Append(buffer_);
    buffer_.clear();
  }
  const absl::Status& status() const { return status_; }

 private:
  void Flush() {
    hash_.Update(buffer_);
    if (status_.ok()) status_ = file_.Append(buffer_);
    buffer_.clear();
  }

  storage::WritableFile& file_;
  Sha256 hash_;
  std::string buffer_;
  uint64_t written_ = 0;
  absl::Status status_;
};

// Runs the dataset through scanner and encoder into the file. Does not sync.
absl::StatusOr<storage::DatasetReport> WriteRows(Files& files, const std::string& dataset_path,
                                                 const storage::TextModel& model,
                                                 const TokenCacheKey& key,
                                                 storage::WritableFile& file,
                                                 const std::atomic<bool>* cancel) {
  CacheWriter writer(file);
  writer.Append(kMagic);
  std::vector<uint64_t> index = {0};
  std::vector<uint64_t> lines;
  std::vector<uint32_t> trained;
  storage::DatasetEncoder encoder(
      model, key.options, [&](int64_t, int64_t line, const storage::EncodedRow& row) {
        writer.Append(BytesOf(row.ids));
        writer.Append(BytesOf(row.labels));
        index.push_back(index.back() + row.ids.size());
        lines.push_back(static_cast<uint64_t>(line));
        trained.push_back(static_cast<uint32_t>(storage::TrainedTokens(row.labels)));
        return absl::OkStatus();
      });
  absl::StatusOr<storage::DatasetReport> report = storage::ScanDataset(
      files, dataset_path, {},
      [&](int64_t row, int64_t line, const storage::DatasetRow& content) {
        return encoder.Encode(row, line, content);
      },
      cancel);
  if (!report.ok()) return report.status();
  encoder.Complete(&*report);
  if (report->error_count > 0) return report;

  const std::string metadata = Metadata(key, *report);
  const Footer footer{trained.size(), index.back(), metadata.size()};
  writer.Append(BytesOf(index));
  writer.Append(BytesOf(lines));
  writer.Append(BytesOf(trained));
  writer.PadTo8();
  writer.Append(metadata);
  writer.PadTo8();
  writer.Append({reinterpret_cast<const char*>(&footer), sizeof(footer)});
  writer.AppendHash();
  if (!writer.status().ok()) return writer.status();
  return report;
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("token cache: ", Absl(what)));
}

}  // namespace

std::string TokenCacheKey::ToText() const {
  return absl::StrCat("2 ", dataset_sha256, " ", model_fingerprint, " ", options.max_length, " ",
                      Absl(storage::ToText(options.overflow)), " ",
                      Absl(storage::ToText(options.train_on)));
}

std::string TokenCacheKey::FileName() const {
  return Sha256::Of(ToText()).substr(0, 32) + ".tokens";
}

absl::StatusOr<storage::DatasetReport> WriteTokenCache(
    Files& files, const std::string& dataset_path, const storage::TextModel& model,
    const TokenCacheKey& key, const std::string& path, const std::atomic<bool>* cancel) {
  static std::atomic<uint64_t> attempts{0};  // two datasets of one content may meet here
  const std::string temporary = absl::StrCat(path, ".", ++attempts, ".tmp");
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> file = files.Create(temporary);
  if (!file.ok()) return file.status();
  absl::StatusOr<storage::DatasetReport> report =
      WriteRows(files, dataset_path, model, key, **file, cancel);
  absl::Status status = report.status();
  const bool whole = report.ok() && report->error_count == 0;
  if (whole) status.Update((*file)->Sync());
  status.Update((*file)->Close());
  if (whole && status.ok()) {
    status.Update(files.Rename(temporary, path));
    status.Update(files.SyncDirectory(storage::ParentPath(path)));
  } else {
    // A file that is left behind is removed at the next start; the first error is the one to
    // return.
    files.Remove(temporary).IgnoreError();
  }
  if (!status.ok()) return status;
  return report;
}

absl::StatusOr<std::unique_ptr<const TokenCache>> TokenCache::Open(const std::string& path,
                                                                   const TokenCacheKey& key,
                                                                   Files& files) {
  absl::StatusOr<std::unique_ptr<storage::MappedFile>> mapping = files.Map(path);
  if (!mapping.ok()) return mapping.status();
  std::unique_ptr<TokenCache> cache(new TokenCache());
  cache->mapping_ = *std::move(mapping);
  if (absl::Status status = cache->Check(key); !status.ok()) return status;
  return std::unique_ptr<const TokenCache>(std::move(cache));
}

// Sizes first (each bound before it is used), then the hash over everything.
absl::Status TokenCache::Check(const TokenCacheKey& key) {
  const char* const begin = mapping_->bytes().data();
  const size_t bytes = mapping_->bytes().size();
  Footer footer;
  if (bytes < kMagic.size() + sizeof(footer) + kHashBytes ||
      std::string_view(begin, kMagic.size()) != kMagic) {
    return Damaged("not one, or cut short");
  }
  const size_t footer_at = bytes - kHashBytes - sizeof(footer);
  memcpy(&footer, begin + footer_at, sizeof(footer));
  const uint64_t most = bytes;
  if (footer.rows > most || footer.tokens > most || footer.metadata_bytes > most) {
    return Damaged("its footer is not one");
  }
  const auto up8 = [](uint64_t bytes) { return (bytes + 7) / 8 * 8; };
  const uint64_t tokens_at = kMagic.size();
  const uint64_t index_at = tokens_at + footer.tokens * 2 * sizeof(int32_t);
  const uint64_t lines_at = index_at + (footer.rows + 1) * sizeof(uint64_t);
  const uint64_t trained_at = lines_at + footer.rows * sizeof(uint64_t);
  const uint64_t metadata_at = up8(trained_at + footer.rows * sizeof(uint32_t));
  if (up8(metadata_at + footer.metadata_bytes) != footer_at) return Damaged("its size is wrong");
  const std::string_view hashed(begin, bytes - kHashBytes);
  if (Sha256::Of(hashed) != std::string_view(begin + hashed.size(), kHashBytes)) {
    return Damaged("its hash is wrong");
  }
  const json metadata =
      json::parse(begin + metadata_at, begin + metadata_at + footer.metadata_bytes, nullptr, false);
  if (!metadata.is_object() || metadata.value("key", "") != key.ToText()) {
    return Damaged("of another key");
  }
  rows_ = static_cast<int64_t>(footer.rows);
  tokens_ = reinterpret_cast<const int32_t*>(begin + tokens_at);
  index_ = reinterpret_cast<const uint64_t*>(begin + index_at);
  lines_ = reinterpret_cast<const uint64_t*>(begin + lines_at);
  trained_ = reinterpret_cast<const uint32_t*>(begin + trained_at);
  report_.format = static_cast<storage::DatasetFormat>(metadata.value("format", 0));
  report_.rows = metadata.value("rows", int64_t{0});
  report_.sequences = rows_;
  report_.size_bytes = metadata.value("size_bytes", int64_t{0});
  report_.tokens = metadata.value("tokens", int64_t{0});
  report_.trained_tokens = metadata.value("trained_tokens", int64_t{0});
  report_.truncated_rows = metadata.value("truncated_rows", int64_t{0});
  report_.skipped_rows = metadata.value("skipped_rows", int64_t{0});
  report_.longest_tokens = metadata.value("longest_tokens", 0);
  return absl::OkStatus();
}

CachedRow TokenCache::row(int64_t row) const {
  assert(row >= 0 && row < rows_);
  const size_t count = static_cast<size_t>(tokens(row));
  const int32_t* ids = tokens_ + 2 * index_[row];
  return {{ids, count}, {ids + count, count}, trained_[row]};
}

int64_t TokenCache::line(int64_t row) const {
  assert(row >= 0 && row < rows_);
  return static_cast<int64_t>(lines_[row]);
}

int64_t TokenCache::tokens(int64_t row) const {
  assert(row >= 0 && row < rows_);
  return static_cast<int64_t>(index_[row + 1] - index_[row]);
}

}  // namespace lorad::server::feed
