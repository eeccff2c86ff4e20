#pragma once

#include <cstdint>
#include <fstream>
#include <istream>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/inputs/rows.h"

struct z_stream_s;

namespace lorad::client {

// A file of rows, or standard input ("-"), as JSON Lines: gzip is taken off, other formats are
// converted, in memory of some MiB. Threads: one at a time.
class RowSource {
 public:
  // `format` is jsonl, json, csv or tsv; "" goes by the file's name and its first bytes. Errors:
  // FILE_UNREADABLE, USAGE.
  static absl::StatusOr<std::unique_ptr<RowSource>> Open(const std::string& path,
                                                         const std::string& format,
                                                         const std::string& columns);
  ~RowSource();

  // The next bytes; "" at the end. Errors: BAD_ROWS_FILE, FILE_UNREADABLE.
  absl::StatusOr<std::string> Next();
  // Of all that Next() gives, where that is the file as it is; else 0.
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  RowSource(std::string path, Columns columns);
  absl::Status Prepare(const std::string& format);
  absl::Status Read(std::string& bytes);
  absl::Status Inflate(const std::string& packed, std::string& bytes);
  absl::Status Wrong(const std::string& what) const;

  const std::string path_;
  const std::string name_;  // in messages
  const Columns columns_;
  std::ifstream file_;
  std::istream* in_ = nullptr;
  std::unique_ptr<z_stream_s> gzip_;  // where the file is packed
  bool member_open_ = false;          // a member of the gzip file is not at its end
  std::string first_;                 // read already, packed where the file is
  bool ended_ = false;
  bool finished_ = false;
  std::unique_ptr<RowConverter> converter_;
  std::int64_t size_bytes_ = 0;
};

}  // namespace lorad::client
