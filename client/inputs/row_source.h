#pragma once

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/inputs/parquet_rows.h"
#include "client/inputs/rows.h"
#include "client/inputs/unpacker.h"

namespace lorad::client {

// Where this program lies.
std::string ProgramFolder();

// A file of rows, or standard input ("-"), as JSON Lines: gzip and zstd are taken off, other
// formats are converted, in memory of some MiB and the window that zstd was told to pack with
// (client/inputs/unpacker.h); Parquet by another process (client/inputs/parquet_rows.h). Threads:
// one at a time.
class RowSource {
 public:
  // `format` is jsonl, json, csv, tsv or parquet; "" goes by the file's name and its first bytes.
  // `programs`: as ParquetRows::Start has it. Errors: FILE_UNREADABLE, USAGE, and those of
  // client/inputs/parquet_rows.h.
  static absl::StatusOr<std::unique_ptr<RowSource>> Open(
      const std::string& path, const std::string& format, const std::string& columns,
      const std::string& programs = ProgramFolder());

  // The next bytes; "" at the end. Errors: BAD_ROWS_FILE, FILE_UNREADABLE, PARQUET_MISSING.
  absl::StatusOr<std::string> Next();
  // Of all that Next() gives, where that is the file as it is; else 0.
  std::int64_t size_bytes() const { return size_bytes_; }
  // Of the file, as it is packed or before it is converted; 0: nobody knows. And so many are read;
  // of Parquet, which another process reads, so many of its rows' text.
  std::int64_t source_bytes() const { return source_bytes_; }
  std::int64_t read_bytes() const { return read_bytes_; }

 private:
  RowSource(std::string path, Columns columns);
  absl::Status Prepare(const std::string& format, const std::string& programs);
  absl::Status StartParquet(const std::string& programs);
  absl::Status Read(std::string& bytes);
  absl::StatusOr<std::string> NextPlain();
  absl::Status Wrong(const std::string& what) const;

  const std::string path_;
  const std::string name_;  // in messages
  const Columns columns_;
  std::ifstream file_;
  std::istream* in_ = nullptr;
  std::unique_ptr<Unpacker> unpacker_;  // where the file is packed
  std::string first_;                   // read already, and unpacked
  bool ended_ = false;
  bool finished_ = false;
  std::unique_ptr<RowConverter> converter_;
  std::unique_ptr<ParquetRows> parquet_;  // in the place of the converter
  std::int64_t size_bytes_ = 0;
  std::int64_t source_bytes_ = 0;
  std::int64_t read_bytes_ = 0;
};

}  // namespace lorad::client
