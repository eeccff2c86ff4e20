#include "client/inputs/row_source.h"

#include <algorithm>
#include <array>
#include <cstdio>
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
constexpr char kParquet[] = "parquet";  // not made of bytes as they come, so no RowFormat

std::optional<RowFormat> FormatOf(absl::string_view name) {
  if (name == "jsonl") return RowFormat::kLines;
  if (name == "json") return RowFormat::kArray;
  if (name == "csv") return RowFormat::kCsv;
  if (name == "tsv") return RowFormat::kTsv;
  return std::nullopt;
}

// What cannot be taken, by its first bytes, and the way to what can.
struct Refused {
  absl::string_view magic;
  absl::string_view what;
};
constexpr char kUtf16[] =
    "is text in UTF-16, and must be in UTF-8; iconv -f UTF-16 -t UTF-8 FILE | lora dataset add "
    "NAME - --format FORMAT";
constexpr std::array<Refused, 6> kRefused = {{
    {"ARROW1",
     "is Arrow, which is not read; python3 -c 'import pandas, sys; "
     "pandas.read_feather(sys.argv[1]).to_json(sys.argv[2], orient=\"records\", lines=True)' "
     "IN.arrow OUT.jsonl makes JSON Lines of it"},
    {"PK\x03\x04",
     "is a zip file, which is not read; unzip -p FILE | lora dataset add NAME -; a spreadsheet is "
     "saved as CSV first"},
    {absl::string_view("\xfd"
                       "7zXZ\0",
                       6),
     "is packed by xz, which is not read; xz -dc FILE | lora dataset add NAME -"},
    {"BZh", "is packed by bzip2, which is not read; bzip2 -dc FILE | lora dataset add NAME -"},
    {"\xff\xfe", kUtf16},
    {"\xfe\xff", kUtf16},
}};

// bzip2's three letters could begin a table; a block's bytes behind them could not.
bool Begins(absl::string_view bytes, absl::string_view magic) {
  if (!absl::StartsWith(bytes, magic)) return false;
  return magic != "BZh" || bytes.substr(std::min<std::size_t>(bytes.size(), 4), 6) == "1AY&SY";
}

absl::string_view WithoutPacking(absl::string_view path) {
  for (const absl::string_view packed : {".gz", ".zst"}) {
    if (absl::EndsWith(path, packed)) path.remove_suffix(packed.size());
  }
  return path;
}

// At the front of Parquet; the latter where all of it is encrypted.
bool BeginsParquet(absl::string_view bytes) {
  return absl::StartsWith(bytes, "PAR1") || absl::StartsWith(bytes, "PARE");
}

// No header of a table begins so: behind the name comes the first page's, in Thrift's bytes.
bool IsParquet(absl::string_view bytes) { return absl::StartsWith(bytes, "PAR1\x15"); }

// By its name alone: any other bytes may be a header.
std::optional<RowFormat> NamedTable(absl::string_view path) {
  path = WithoutPacking(path);
  if (absl::EndsWith(path, ".csv")) return RowFormat::kCsv;
  if (absl::EndsWith(path, ".tsv")) return RowFormat::kTsv;
  return std::nullopt;
}

// A list is told from lines by its bracket.
RowFormat GuessFormat(absl::string_view bytes) {
  if (absl::StartsWith(bytes, "\xef\xbb\xbf")) bytes.remove_prefix(3);
  const std::size_t at = bytes.find_first_not_of(" \t\r\n");
  const bool list = at != absl::string_view::npos && bytes[at] == '[';
  return list ? RowFormat::kArray : RowFormat::kLines;
}

// Fields between separators, and nothing of JSON.
bool LooksLikeTable(absl::string_view bytes) {
  const absl::string_view line = bytes.substr(0, bytes.find('\n'));
  return line.find_first_of("{[") == absl::string_view::npos &&
         line.find_first_of(",;\t") != absl::string_view::npos;
}

}  // namespace

RowSource::RowSource(std::string path, Columns columns)
    : path_(std::move(path)),
      name_(path_ == "-" ? "standard input" : path_),
      columns_(std::move(columns)) {}

absl::Status RowSource::Wrong(const std::string& what) const {
  return Error("BAD_ROWS_FILE", absl::StrCat(name_, ": ", what));
}

std::string ProgramFolder() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path().string();
}

absl::StatusOr<std::unique_ptr<RowSource>> RowSource::Open(const std::string& path,
                                                           const std::string& format,
                                                           const std::string& columns,
                                                           const std::string& programs) {
  if (!format.empty() && format != kParquet && !FormatOf(format)) {
    return Error("USAGE",
                 absl::StrCat("--format must be jsonl, json, csv, tsv or parquet, got ", format));
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
  const absl::Status prepared = source->Prepare(format, programs);
  if (!prepared.ok()) return prepared;
  return source;
}

absl::Status RowSource::Prepare(const std::string& format, const std::string& programs) {
  if (const auto status = Read(first_); !status.ok()) return status;
  unpacker_ = MakeUnpacker(first_);
  if (unpacker_ != nullptr) {
    unpacker_->Give(std::exchange(first_, std::string()));
    absl::StatusOr<std::string> plain = NextPlain();
    if (!plain.ok()) return plain.status();
    first_ = *std::move(plain);
  }
  const std::optional<RowFormat> table = NamedTable(path_);
  const bool named = absl::EndsWith(WithoutPacking(path_), ".parquet");
  const bool parquet = named || IsParquet(first_) || (!table && BeginsParquet(first_));
  if (format == kParquet || (format.empty() && parquet)) return StartParquet(programs);
  for (const Refused& refused : kRefused) {
    if (Begins(first_, refused.magic)) return Wrong(std::string(refused.what));
  }
  const RowFormat meant = !format.empty() ? *FormatOf(format)
                          : table         ? *table
                                          : GuessFormat(first_);
  if (format.empty() && meant == RowFormat::kLines && LooksLikeTable(first_)) {
    return Wrong(
        "line 1 is no JSON object, as JSON Lines has it; say --format csv or tsv of a table");
  }
  converter_ = MakeRowConverter(meant, columns_, name_);
  if (path_ == "-") return absl::OkStatus();
  std::error_code error;
  const auto size = std::filesystem::file_size(path_, error);
  source_bytes_ = error ? 0 : static_cast<std::int64_t>(size);
  if (meant == RowFormat::kLines && columns_.empty() && unpacker_ == nullptr) {
    size_bytes_ = source_bytes_;
  }
  return absl::OkStatus();
}

absl::Status RowSource::StartParquet(const std::string& programs) {
  if (!BeginsParquet(first_)) {
    return Wrong(first_.empty()
                     ? "is empty, and no Parquet file"
                     : "is no Parquet file, which begins with PAR1; say --format jsonl, json, csv "
                       "or tsv, whichever it is");
  }
  std::error_code error;
  File file;
  if (path_ != "-" && unpacker_ == nullptr && std::filesystem::is_regular_file(path_, error)) {
    file.reset(std::fopen(path_.c_str(), "rbe"));
    if (file == nullptr) return Unreadable(name_);
  } else {
    absl::StatusOr<File> spooled = Spooled([this] { return NextPlain(); }, name_);
    if (!spooled.ok()) return spooled.status();
    file = *std::move(spooled);
  }
  auto rows = ParquetRows::Start(std::move(file), columns_, name_, programs);
  if (!rows.ok()) return rows.status();
  parquet_ = *std::move(rows);
  read_bytes_ = 0;  // those of the file, of which no row has come yet
  return absl::OkStatus();
}

absl::Status RowSource::Read(std::string& bytes) {
  bytes.resize(kReadBytes);
  in_->read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (in_->bad()) return Unreadable(name_);
  bytes.resize(static_cast<std::size_t>(in_->gcount()));
  ended_ = bytes.size() < kReadBytes;
  read_bytes_ += static_cast<std::int64_t>(bytes.size());
  return absl::OkStatus();
}

// "" at the end.
absl::StatusOr<std::string> RowSource::NextPlain() {
  if (!first_.empty()) return std::exchange(first_, std::string());
  while (true) {
    if (unpacker_ != nullptr) {
      absl::StatusOr<std::string> piece = unpacker_->Unpack();
      if (!piece.ok()) return Wrong(std::string(piece.status().message()));
      if (!piece->empty()) return piece;
    }
    if (ended_) {
      if (unpacker_ == nullptr || unpacker_->AtEnd()) return std::string();
      return Wrong("the packed file is cut off; gzip -t or zstd -t tells more");
    }
    std::string read;
    if (const auto status = Read(read); !status.ok()) return status;
    if (unpacker_ == nullptr) return read;
    unpacker_->Give(std::move(read));
  }
}

absl::StatusOr<std::string> RowSource::Next() {
  if (parquet_ != nullptr) {
    absl::StatusOr<std::string> rows = parquet_->Next();
    if (rows.ok()) read_bytes_ += static_cast<std::int64_t>(rows->size());
    return rows;
  }
  std::string out;
  while (out.empty() && !finished_) {
    const absl::StatusOr<std::string> bytes = NextPlain();
    if (!bytes.ok()) return bytes.status();
    finished_ = bytes->empty();
    const auto status = finished_ ? converter_->Finish(out) : converter_->Take(*bytes, out);
    if (!status.ok()) return status;
  }
  return out;
}

}  // namespace lorad::client
