#pragma once

#include <sys/types.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/inputs/rows.h"

namespace lorad::client {

struct CloseFile {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, CloseFile>;

// A dataset may have as much of JSON Lines, which is more than Parquet takes for the same rows.
inline constexpr std::int64_t kSpoolBytesMax = std::int64_t{4} << 30;

// The bytes that `next` gives, up to the "" at their end, in a file without a name: Parquet is read
// from its end. It lies in $TMPDIR or /tmp and goes with the process. Errors: those of `next`,
// NO_ROOM_FOR_ROWS; BAD_ROWS_FILE where it would be larger than `bytes_max`, whole MiB.
absl::StatusOr<File> Spooled(const std::function<absl::StatusOr<std::string>()>& next,
                             const std::string& file_name, std::int64_t bytes_max = kSpoolBytesMax);

// The rows of a Parquet file as JSON Lines. Another process makes them, lorad-parquet
// (client/parquet): its libraries are large, and what a malicious file makes of them is its own.
// Threads: one at a time.
class ParquetRows {
 public:
  // `programs`: the folder where lorad-parquet lies, or where parquet/lorad-parquet does.
  // `file_name` is for the messages. Errors: PARQUET_MISSING.
  static absl::StatusOr<std::unique_ptr<ParquetRows>> Start(File file, const Columns& columns,
                                                            const std::string& file_name,
                                                            const std::string& programs);
  // Ends the process where it has not ended.
  ~ParquetRows();
  ParquetRows(const ParquetRows&) = delete;
  ParquetRows& operator=(const ParquetRows&) = delete;

  // The next bytes; "" at the end. Errors: BAD_ROWS_FILE, PARQUET_MISSING.
  absl::StatusOr<std::string> Next();

 private:
  ParquetRows(const std::string& file_name, File rows, File said, pid_t pid)
      : file_name_(file_name), rows_(std::move(rows)), said_(std::move(said)), pid_(pid) {}
  absl::Status End();
  std::string Said() const;

  const std::string file_name_;
  File rows_;        // its standard output
  const File said_;  // its standard error, in memory
  pid_t pid_;        // 0: it has ended, and so it is nobody's
};

}  // namespace lorad::client
