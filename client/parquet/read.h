#pragma once

#include <arrow/io/type_fwd.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace lorad::client {

// Gives `write` the rows of a Parquet file as JSON Lines, row group by row group: a page of each
// column, 64 rows and their text are in memory, which Arrow may take 1 GiB of. `columns`: a
// column's name in the file -> its name in the rows. Ends early where `write` returns false.
// Threads: one. INVALID_ARGUMENT: what is wrong with the file, after the rows before it.
absl::Status ReadParquet(std::shared_ptr<arrow::io::RandomAccessFile> file,
                         const std::map<std::string, std::string>& columns,
                         const std::function<bool(absl::string_view)>& write);

}  // namespace lorad::client
