#include "storage/sqlite_errors.h"

#include <cerrno>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

// The errno of the newest write that failed, of the log or else of the database: SQLite itself
// distinguishes ENOSPC alone from other failures.
int WriteError(sqlite3* database) {
  int error = 0;
  if (database == nullptr) return error;
  sqlite3_file* log = nullptr;
  sqlite3_file_control(database, "main", SQLITE_FCNTL_JOURNAL_POINTER, &log);
  if (log != nullptr && log->pMethods != nullptr) {
    log->pMethods->xFileControl(log, SQLITE_FCNTL_LAST_ERRNO, &error);
  }
  if (error == 0) sqlite3_file_control(database, "main", SQLITE_FCNTL_LAST_ERRNO, &error);
  return error;
}

}  // namespace

absl::Status FromSqlite(sqlite3* database, int code, const std::string& path) {
  const std::string text =
      absl::StrCat(path, ": ", database ? sqlite3_errmsg(database) : sqlite3_errstr(code));
  const auto full = [&text] {
    return WithReason(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                      absl::StrCat(text, "; make room on its disk"));
  };
  const auto read_only = [&text] {
    return WithReason(absl::StatusCode::kUnavailable, "STORE_READ_ONLY",
                      absl::StrCat(text, "; make its file system writable again"));
  };
  if (code == SQLITE_IOERR_FSYNC || code == SQLITE_IOERR_DIR_FSYNC) {
    return WithReason(absl::StatusCode::kInternal, "STORE_SYNC_FAILED",
                      absl::StrCat(text, " (fsync failed): look at its disk"));
  }
  switch (code & 0xff) {
    case SQLITE_FULL:
      return full();
    case SQLITE_READONLY:
      return read_only();
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return WithReason(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                        absl::StrCat(text, "; put a copy of the data directory in its place"));
    case SQLITE_BUSY:
      return WithReason(absl::StatusCode::kFailedPrecondition, "STORE_LOCKED",
                        absl::StrCat(text, "; another program holds it open"));
    default:
      break;
  }
  if (code == SQLITE_IOERR_WRITE) {
    const int error = WriteError(database);
    if (error == EDQUOT) return full();
    if (error == EFBIG) {
      return WithReason(absl::StatusCode::kResourceExhausted, "DISK_FULL",
                        absl::StrCat(text, "; the process may make no larger file (ulimit -f)"));
    }
    if (error == EROFS) return read_only();
  }
  return absl::InternalError(text);
}

bool MayPass(const absl::Status& status) {
  return absl::IsResourceExhausted(status) || absl::IsUnavailable(status);
}

}  // namespace lorad::storage
