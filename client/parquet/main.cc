// lorad-parquet: makes JSON Lines of a Parquet file. lora starts it (client/inputs/parquet_rows.h); by
// hand:
//
//   lorad-parquet [COLUMN NAME ...] < FILE.parquet > rows.jsonl    a column's name, and that in the rows
//
// It ends with 1 and a line on stderr where the file cannot be taken.
#include <arrow/io/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <map>
#include <string>

#include "client/parquet/read.h"

namespace {

bool WriteAll(absl::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(STDOUT_FILENO, text.data(), text.size());
    if (written < 0 && errno != EINTR) return false;
    if (written > 0) text.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

int Fail(const std::string& what) {
  std::fprintf(stderr, "%s\n", what.c_str());
  return 1;
}

}  // namespace

int main(int count, char** arguments) {
  std::map<std::string, std::string> columns;
  for (int i = 1; i + 1 < count; i += 2) columns[arguments[i]] = arguments[i + 1];
  if (count % 2 == 0)
    return Fail("usage: lorad-parquet [COLUMN NAME ...] < FILE.parquet > rows.jsonl");
  const auto file = arrow::io::ReadableFile::Open(STDIN_FILENO);
  if (!file.ok()) return Fail("standard input is no file, which Parquet must be read from");
  bool written = true;
  const absl::Status status = lorad::client::ReadParquet(
      *file, columns, [&](absl::string_view text) { return written = WriteAll(text); });
  if (!status.ok()) return Fail(std::string(status.message()));
  return written ? 0 : Fail("standard output is gone");
}
