#include "server/feed/token_cache.h"

#include <zlib.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cassert>
#include <cstring>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/files/sha256.h"

namespace lorad::server::feed {
namespace {

using nlohmann::json;
using storage::Absl;
using storage::Files;
using storage::Sha256;

static_assert(std::endian::native == std::endian::little, "the cache is read as it lies");

// Its number rises where rows become other tokens or labels than before, or the layout another one:
// older caches are made again.
constexpr std::string_view kMagic = "LORADTK4";
constexpr size_t kHashBytes = 64;
constexpr size_t kBufferBytes = 1 << 20;

// In front of the ids and labels of a row.
struct RowHeader {
  uint64_t line = 0;
  uint32_t trained_tokens = 0;
  uint32_t checksum = 0;
};

// The last bytes of a cache, before the hash.
struct Footer {
  uint64_t rows = 0;
  uint64_t metadata_bytes = 0;
};

template <class T>
std::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

template <class T>
std::string_view BytesOf(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(T)};
}

uint32_t Crc32(uint32_t so_far, std::string_view bytes) {
  return static_cast<uint32_t>(
      crc32_z(so_far, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

// Rows of other caches, and of other versions, have other checksums.
uint32_t ChecksumOf(const TokenCacheKey& key) { return Crc32(Crc32(0, kMagic), key.ToText()); }

// Of a row and where it belongs; `words` in parts that follow one another.
uint32_t ChecksumOf(uint32_t key_checksum, uint64_t row, RowHeader header,
                    std::initializer_list<std::string_view> words) {
  header.checksum = 0;
  uint32_t checksum = Crc32(Crc32(key_checksum, BytesOf(row)), BytesOf(header));
  for (const std::string_view part : words) checksum = Crc32(checksum, part);
  return checksum;
}

uint64_t Up8(uint64_t bytes) { return (bytes + 7) / 8 * 8; }

// Where the row ends that begins there.
uint64_t EndOfRow(uint64_t begin, uint64_t tokens) {
  return begin + sizeof(RowHeader) + tokens * 2 * sizeof(int32_t);
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
  void PadTo8() { Append(std::string(Up8(written_) - written_, '\0')); }
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
  const uint32_t key_checksum = ChecksumOf(key);
  std::vector<uint64_t> places = {kMagic.size()};
  storage::DatasetEncoder encoder(
      model, key.options, [&](int64_t, int64_t line, const storage::EncodedRow& row) {
        RowHeader header;
        header.line = static_cast<uint64_t>(line);
        header.trained_tokens = static_cast<uint32_t>(storage::TrainedTokens(row.labels));
        const std::string_view ids = BytesOf(row.ids), labels = BytesOf(row.labels);
        header.checksum = ChecksumOf(key_checksum, places.size() - 1, header, {ids, labels});
        writer.Append(BytesOf(header));
        writer.Append(ids);
        writer.Append(labels);
        places.push_back(EndOfRow(places.back(), row.ids.size()));
        return absl::OkStatus();
      });
  absl::StatusOr<storage::DatasetReport> report = storage::ScanDataset(
      files, dataset_path, key.dataset_sha256, {},
      [&](int64_t row, int64_t line, const storage::DatasetRow& content) {
        return encoder.Encode(row, line, content);
      },
      cancel);
  if (!report.ok()) return report.status();
  encoder.Complete(&*report);
  if (report->error_count > 0) return report;

  const std::string metadata = Metadata(key, *report);
  const Footer footer{places.size() - 1, metadata.size()};
  writer.Append(BytesOf(places));
  writer.Append(metadata);
  writer.PadTo8();
  writer.Append(BytesOf(footer));
  writer.AppendHash();
  if (!writer.status().ok()) return writer.status();
  return report;
}

absl::Status Damaged(std::string_view what) {
  return absl::DataLossError(absl::StrCat("token cache: ", Absl(what)));
}

storage::DatasetReport ReportOf(const json& metadata) {
  storage::DatasetReport report;
  report.format = static_cast<storage::DatasetFormat>(metadata.value("format", 0));
  report.rows = metadata.value("rows", int64_t{0});
  report.size_bytes = metadata.value("size_bytes", int64_t{0});
  report.tokens = metadata.value("tokens", int64_t{0});
  report.trained_tokens = metadata.value("trained_tokens", int64_t{0});
  report.truncated_rows = metadata.value("truncated_rows", int64_t{0});
  report.skipped_rows = metadata.value("skipped_rows", int64_t{0});
  report.longest_tokens = metadata.value("longest_tokens", 0);
  return report;
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
  absl::StatusOr<std::unique_ptr<storage::ReadableFile>> file = files.OpenToRead(path);
  if (!file.ok()) return file.status();
  std::unique_ptr<TokenCache> cache(new TokenCache());
  cache->file_ = *std::move(file);
  if (absl::Status status = cache->Check(key); !status.ok()) return status;
  return std::unique_ptr<const TokenCache>(std::move(cache));
}

// Sizes first (each bound before it is used), then the hash over everything. What is kept in memory
// is what was hashed.
absl::Status TokenCache::Check(const TokenCacheKey& key) {
  constexpr uint64_t kEndBytes = sizeof(Footer) + kHashBytes;
  const absl::StatusOr<uint64_t> size = file_->Size();
  if (!size.ok()) return size.status();
  if (*size < kMagic.size() + kEndBytes) return Damaged("not one, or cut short");
  Footer footer;
  if (auto read = file_->ReadAt(*size - kEndBytes, sizeof(footer), &footer); !read.ok())
    return read;
  if (footer.rows >= *size / sizeof(RowHeader) || footer.metadata_bytes > *size) {
    return Damaged("its footer is not one");
  }
  const uint64_t places_bytes = (footer.rows + 1) * sizeof(uint64_t);
  const uint64_t tail_bytes = places_bytes + Up8(footer.metadata_bytes) + kEndBytes;
  if (tail_bytes > *size - kMagic.size()) return Damaged("its size is wrong");
  places_.resize(footer.rows + 1);
  std::string tail(tail_bytes - places_bytes, '\0');
  const uint64_t places_at = *size - tail_bytes;
  absl::Status read = file_->ReadAt(places_at, places_bytes, places_.data());
  read.Update(file_->ReadAt(places_at + places_bytes, tail.size(), tail.data()));
  Sha256 hash;
  read.Update(HashRows(places_at, &hash));
  if (!read.ok()) return read;
  hash.Update(BytesOf(places_));
  hash.Update(std::string_view(tail).substr(0, tail.size() - kHashBytes));
  if (hash.HexDigest() != std::string_view(tail).substr(tail.size() - kHashBytes)) {
    return Damaged("its hash is wrong");
  }
  const json metadata =
      json::parse(std::string_view(tail).substr(0, footer.metadata_bytes), nullptr, false);
  if (!metadata.is_object() || metadata.value("key", "") != key.ToText()) {
    return Damaged("of another key");
  }
  key_checksum_ = ChecksumOf(key);
  report_ = ReportOf(metadata);
  report_.sequences = rows();
  return absl::OkStatus();
}

absl::Status TokenCache::HashRows(uint64_t end, Sha256* hash) const {
  std::string buffer(std::min<uint64_t>(kBufferBytes, end), '\0');
  for (uint64_t at = 0; at < end; at += buffer.size()) {
    buffer.resize(std::min<uint64_t>(buffer.size(), end - at));
    if (auto read = file_->ReadAt(at, buffer.size(), buffer.data()); !read.ok()) return read;
    if (at == 0 && !buffer.starts_with(kMagic)) return Damaged("not one, or of another version");
    hash->Update(buffer);
  }
  return absl::OkStatus();
}

int64_t TokenCache::tokens(int64_t row) const {
  assert(row >= 0 && row < rows());
  const uint64_t bytes = places_[row + 1] - places_[row] - sizeof(RowHeader);
  return static_cast<int64_t>(bytes / (2 * sizeof(int32_t)));
}

absl::StatusOr<CachedRow> TokenCache::Read(int64_t row) const {
  constexpr size_t kHeaderWords = sizeof(RowHeader) / sizeof(int32_t);
  const size_t count = static_cast<size_t>(2 * tokens(row));
  std::vector<int32_t> words(kHeaderWords + count);
  const uint64_t place = places_[row];
  if (auto read = file_->ReadAt(place, words.size() * sizeof(int32_t), words.data()); !read.ok()) {
    return read;
  }
  RowHeader header;
  memcpy(static_cast<void*>(&header), words.data(), sizeof(header));
  words.erase(words.begin(), words.begin() + kHeaderWords);
  if (ChecksumOf(key_checksum_, static_cast<uint64_t>(row), header, {BytesOf(words)}) !=
      header.checksum) {
    return Damaged(absl::StrCat("row ", row, " is not what was written"));
  }
  return CachedRow{static_cast<int64_t>(header.line), header.trained_tokens, std::move(words)};
}

}  // namespace lorad::server::feed
