// The meaning of SQLite's results for the store (job_store.h has the reasons).
#pragma once

#include <sqlite3.h>

#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace lorad::storage {

// `code`: an extended result of a call on `database` (null: there is none), whose file is `path`.
absl::Status FromSqlite(sqlite3* database, int code, const std::string& path);

// Whether nothing was changed and the same may be tried again.
bool MayPass(const absl::Status& status);

}  // namespace lorad::storage
