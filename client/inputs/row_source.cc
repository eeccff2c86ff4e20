#include "client/inputs/row_source.h"

#include <zlib.h>

#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/upload.h"

namespace lorad::client {
namespace {

constexpr std::size_t kReadBytes = 256 << 10;

std::optional<RowFormat> FormatOf(absl::string_view name) {
  if (name == "jsonl") return RowFormat::kLines;
  if (name == "json") return RowFormat::kArray;
  if (name == "csv") return RowFormat::kCsv;
  if (name == "tsv") return RowFormat::kTsv;
  return std::nullopt;
}

// A list is told from lines by its bracket.
RowFormat GuessFormat(absl::string_view path, absl::string_view bytes) {
  if (absl::EndsWith(path, ".gz")) path.remove_suffix(3);
  if (absl::EndsWith(path, ".csv")) return RowFormat::kCsv;
  if (absl::EndsWith(path, ".tsv")) return RowFormat::kTsv;
  if (absl::StartsWith(bytes, "\xef\xbb\xbf")) bytes.remove_prefix(3);
  const std::size_t at = bytes.find_first_not_of(" \t\r\n");
  const bool list = at != absl::string_view::npos && bytes[at] == '[';
  return list ? RowFormat::kArray : RowFormat::kLines;
}

}  // namespace

RowSource::RowSource(std::string path, Columns columns)
    : path_(std::move(path)),
      name_(path_ == "-" ? "standard input" : path_),
      columns_(std::move(columns)) {}

RowSource::~RowSource() {
  if (gzip_ != nullptr) inflateEnd(gzip_.get());
}

absl::Status RowSource::Wrong(const std::string& what) const {
  return Error("BAD_ROWS_FILE", absl::StrCat(name_, ": ", what));
}

absl::StatusOr<std::unique_ptr<RowSource>> RowSource::Open(const std::string& path,
                                                           const std::string& format,
                                                           const std::string& columns) {
  if (!format.empty() && !FormatOf(format)) {
    return Error("USAGE", absl::StrCat("--format must be jsonl, json, csv or tsv, got ", format));
  }
  absl::StatusOr<Columns> names = ReadColumns(columns);
  if (!names.ok()) return names.status();
  std::unique_ptr<RowSource> source(new RowSource(path, *std::move(names)));
  if (path == "-") {
    source->in_ = &std::cin;
  } else {
    absl::StatusOr<std::ifstream> file = OpenFile(path);
    if (!file.ok()) return file.status();
    source->file_ = *std::move(file);
    source->in_ = &source->file_;
  }
  const absl::Status prepared = source->Prepare(format);
  if (!prepared.ok()) return prepared;
  return source;
}

absl::Status RowSource::Prepare(const std::string& format) {
  if (const auto status = Read(first_); !status.ok()) return status;
  const absl::string_view bytes(first_);
  if (absl::StartsWith(bytes, "PAR1")) {
    return Wrong(
        "is Parquet, which is not read; python3 -c 'import pandas, sys; "
        "pandas.read_parquet(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' "
        "IN.parquet OUT.jsonl makes JSON Lines of it");
  }
  if (absl::StartsWith(bytes, "\x28\xb5\x2f\xfd")) {
    return Wrong("is packed by zstd, which is not read; zstd -dc FILE | lora dataset add NAME -");
  }
  std::string plain = first_;
  if (absl::StartsWith(bytes, "\x1f\x8b")) {
    gzip_ = std::make_unique<z_stream>();
    if (inflateInit2(gzip_.get(), 16 + MAX_WBITS) != Z_OK) return Wrong("no memory to unpack it");
    plain.clear();
    if (const auto status = Inflate(first_, plain); !status.ok()) return status;
  }
  first_ = std::move(plain);
  const RowFormat meant = format.empty() ? GuessFormat(path_, first_) : *FormatOf(format);
  converter_ = MakeRowConverter(meant, columns_, name_);
  std::error_code error;
  if (meant == RowFormat::kLines && columns_.empty() && gzip_ == nullptr && path_ != "-") {
    const auto size = std::filesystem::file_size(path_, error);
    size_bytes_ = error ? 0 : static_cast<std::int64_t>(size);
  }
  return absl::OkStatus();
}

absl::Status RowSource::Read(std::string& bytes) {
  bytes.resize(kReadBytes);
  in_->read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (in_->bad()) return Unreadable(name_);
  bytes.resize(static_cast<std::size_t>(in_->gcount()));
  ended_ = bytes.size() < kReadBytes;
  return absl::OkStatus();
}

// Members may follow one another, as gzip takes them.
absl::Status RowSource::Inflate(const std::string& packed, std::string& bytes) {
  z_stream& zip = *gzip_;
  zip.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data()));
  zip.avail_in = static_cast<uInt>(packed.size());
  std::string piece(kReadBytes, '\0');
  bool more = zip.avail_in > 0;
  while (more) {
    zip.next_out = reinterpret_cast<Bytef*>(piece.data());
    zip.avail_out = static_cast<uInt>(piece.size());
    const int status = inflate(&zip, Z_NO_FLUSH);
    if (status != Z_OK && status != Z_STREAM_END && status != Z_BUF_ERROR) {
      return Wrong(absl::StrCat("is no whole gzip file (", zip.msg == nullptr ? "?" : zip.msg,
                                "); gzip -t tells more"));
    }
    bytes.append(piece, 0, piece.size() - zip.avail_out);
    member_open_ = status != Z_STREAM_END;
    more = zip.avail_in > 0 || (member_open_ && zip.avail_out == 0);
    if (status == Z_STREAM_END && zip.avail_in > 0) inflateReset(&zip);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> RowSource::Next() {
  std::string out;
  while (out.empty() && !finished_) {
    std::string bytes = std::exchange(first_, std::string());
    if (bytes.empty() && !ended_) {
      std::string read;
      if (const auto status = Read(read); !status.ok()) return status;
      if (gzip_ == nullptr) {
        bytes = std::move(read);
      } else if (const auto status = Inflate(read, bytes); !status.ok()) {
        return status;
      }
    }
    if (const auto status = converter_->Take(bytes, out); !status.ok()) return status;
    if (!ended_) continue;
    if (member_open_) return Wrong("the gzip file is cut off; gzip -t tells more");
    finished_ = true;
    if (const auto status = converter_->Finish(out); !status.ok()) return status;
  }
  return out;
}

}  // namespace lorad::client
