#include "storage/job_store.h"

#include <sqlite3.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"
#include "storage/sqlite_errors.h"

namespace lorad::storage {
namespace {

constexpr char kFile[] = "lorad.sqlite";
constexpr uint32_t kApplicationId = 0x4c6f5244;  // "LoRD"
constexpr int kCheckpointFrames = 1000;          // SQLite's own default

// Step i brings a file of version i to version i + 1. Never change one that was released.
constexpr std::array<const char*, 2> kMigrations = {
    "CREATE TABLE records (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,"
    "  PRIMARY KEY (kind, key)) WITHOUT ROWID;"
    "CREATE TABLE series (kind TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL,"
    "  value BLOB NOT NULL, PRIMARY KEY (kind, key, number)) WITHOUT ROWID;",
    // Series that were deleted and whose entries are not all removed yet.
    "CREATE TABLE dropped (kind TEXT NOT NULL, key TEXT NOT NULL,"
    "  PRIMARY KEY (kind, key)) WITHOUT ROWID;",
};

// Entries of a deleted series that one transaction removes: a few milliseconds.
constexpr int kPieceEntries = 1024;

struct ActionSql {
  const char* sql;
  bool has_number;
  bool has_value;
};

// In the order of Mutation::Action.
constexpr std::array<ActionSql, 6> kActions = {{
    {"INSERT OR REPLACE INTO records (kind, key, value) VALUES (?1, ?2, ?4)", false, true},
    {"DELETE FROM records WHERE kind = ?1 AND key = ?2", false, false},
    {"INSERT OR REPLACE INTO series (kind, key, number, value) VALUES (?1, ?2, ?3, ?4)", true,
     true},
    {"DELETE FROM series WHERE kind = ?1 AND key = ?2 AND number = ?3", true, false},
    {"INSERT OR REPLACE INTO dropped (kind, key) VALUES (?1, ?2)", false, false},
    {"DELETE FROM series WHERE kind = ?1 AND key = ?2 AND number <= ?3", true, false},
}};

absl::Status NotOurs(const std::string& path) {
  return WithReason(
      absl::StatusCode::kDataLoss, "STORE_CORRUPT",
      absl::StrCat(path,
                   " is a database, but not lorad's: it is left as it is; name another "
                   "--data-dir"));
}

// Writes the log at `path`, where there is one, in place once more and syncs it. A process that
// ended because it could not sync it has left turns that may lie in the kernel's memory alone: read
// from there, they would be taken for durable, and all that is appended behind them would go with
// them.
int RewriteLog(sqlite3_vfs* vfs, const std::string& path) {
  int there = 0;
  if (int code = vfs->xAccess(vfs, path.c_str(), SQLITE_ACCESS_EXISTS, &there); code != SQLITE_OK) {
    return code;
  }
  if (there == 0) return SQLITE_OK;
  const auto memory = std::make_unique<char[]>(static_cast<size_t>(vfs->szOsFile));
  sqlite3_file* const file = reinterpret_cast<sqlite3_file*>(memory.get());
  constexpr int kFlags = SQLITE_OPEN_READWRITE | SQLITE_OPEN_WAL;
  int opened = kFlags;
  int code = vfs->xOpen(vfs, path.c_str(), file, kFlags, &opened);
  // Where it may not be written, the database will say so.
  if (code == SQLITE_OK && (opened & SQLITE_OPEN_READONLY) == 0) {
    constexpr sqlite3_int64 kPieceBytes = 64 << 10;  // SQLite writes less than 128 KiB at once
    sqlite3_int64 bytes = 0;
    code = file->pMethods->xFileSize(file, &bytes);
    std::string piece;
    for (sqlite3_int64 at = 0; code == SQLITE_OK && at < bytes; at += piece.size()) {
      piece.resize(static_cast<size_t>(std::min<sqlite3_int64>(bytes - at, kPieceBytes)));
      const int length = static_cast<int>(piece.size());
      code = file->pMethods->xRead(file, piece.data(), length, at);
      if (code == SQLITE_OK) code = file->pMethods->xWrite(file, piece.data(), length, at);
    }
    if (code == SQLITE_OK) code = file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
  }
  if (file->pMethods != nullptr) file->pMethods->xClose(file);
  return code;
}

// A prepared statement, reset after each use.
class Statement {
 public:
  Statement() = default;
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;
  ~Statement() { sqlite3_finalize(statement_); }

  int Prepare(sqlite3* database, const char* sql) {
    return sqlite3_prepare_v3(database, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement_, nullptr);
  }
  void Text(int index, std::string_view text) {
    sqlite3_bind_text64(statement_, index, text.data(), text.size(), SQLITE_STATIC, SQLITE_UTF8);
  }
  void Blob(int index, std::string_view bytes) {
    // A null pointer would bind NULL, also for an empty value.
    sqlite3_bind_blob64(statement_, index, bytes.empty() ? "" : bytes.data(), bytes.size(),
                        SQLITE_STATIC);
  }
  void Integer(int index, int64_t value) { sqlite3_bind_int64(statement_, index, value); }
  int Step() { return sqlite3_step(statement_); }
  void Reset() {
    sqlite3_reset(statement_);
    sqlite3_clear_bindings(statement_);
  }
  int64_t IntegerAt(int column) { return sqlite3_column_int64(statement_, column); }
  std::string_view BytesAt(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data ? std::string_view(static_cast<const char*>(data), size) : std::string_view();
  }

 private:
  sqlite3_stmt* statement_ = nullptr;
};

// Resets on the way out, so that no read stays open.
class Use {
 public:
  explicit Use(Statement& statement) : statement_(statement) {}
  ~Use() { statement_.Reset(); }

 private:
  Statement& statement_;
};

class SqliteJobStore : public JobStore {
 public:
  SqliteJobStore(std::string path, StoreHooks hooks, std::string vfs)
      : path_(std::move(path)), hooks_(std::move(hooks)), vfs_(std::move(vfs)) {}

  ~SqliteJobStore() override {
    // Statements first: a connection with live statements does not close.
    statements_.reset();
    sqlite3_close(database_);
  }

  absl::Status Init() {
    std::lock_guard lock(mutex_);
    sqlite3_vfs* const vfs = sqlite3_vfs_find(vfs_.empty() ? nullptr : vfs_.c_str());
    assert(vfs != nullptr);
    const std::string log = absl::StrCat(path_, "-wal");
    int code = RewriteLog(vfs, log);
    if (code != SQLITE_OK) return FromSqlite(nullptr, code, log);
    code = sqlite3_open_v2(
        path_.c_str(), &database_,
        SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE,
        vfs_.empty() ? nullptr : vfs_.c_str());
    if (code != SQLITE_OK) return Error(code);
    // Where it may not write, SQLite opens to read.
    if (sqlite3_db_readonly(database_, "main") == 1) return Error(SQLITE_READONLY);
    // Small pages, in a file that is made now: a turn writes every page that it touches, and most
    // change some 100 bytes of two. Exclusive before WAL: then the index of the log lives in our
    // memory and no second process can come in.
    for (const char* pragma :
         {"PRAGMA page_size=1024", "PRAGMA locking_mode=EXCLUSIVE", "PRAGMA mmap_size=0",
          "PRAGMA journal_mode=WAL", "PRAGMA synchronous=FULL"}) {
      if (absl::Status status = Run(pragma); !status.ok()) return status;
    }
    sqlite3_wal_hook(database_, CountFrames, this);  // in place of SQLite's own checkpoints
    if (absl::Status status = Migrate(); !status.ok()) return status;
    if (absl::Status status = ReadDropped(); !status.ok()) return status;
    return Prepare();
  }

  absl::Status Apply(const std::vector<Mutation>& mutations) override {
    if (mutations.empty()) return absl::OkStatus();
    std::lock_guard lock(mutex_);
    if (!broken_.ok()) return broken_;
    if (absl::Status status = CheckPath(); !status.ok()) return status;
    absl::Status status = Commit(mutations);
    if (status.ok() && frames_ >= kCheckpointFrames) {
      status = Checkpoint();
      // The turn is durable, and the next one tries again to empty the log.
      if (MayPass(status)) status = absl::OkStatus();
    }
    if (!status.ok() && !MayPass(status)) broken_ = status;
    return status;
  }

  absl::StatusOr<std::optional<std::string>> GetRecord(std::string_view kind,
                                                       std::string_view key) override {
    std::lock_guard lock(mutex_);
    Statement& get = statements_->get;
    Use use(get);
    get.Text(1, kind);
    get.Text(2, key);
    const int code = get.Step();
    if (code == SQLITE_ROW) return std::optional<std::string>(get.BytesAt(0));
    if (code == SQLITE_DONE) return std::optional<std::string>();
    return Error(code);
  }

  absl::Status ScanRecords(
      std::string_view kind,
      const std::function<absl::Status(std::string_view, std::string_view)>& visit) override {
    std::lock_guard lock(mutex_);
    Statement& scan = statements_->scan;
    Use use(scan);
    scan.Text(1, kind);
    int code;
    while ((code = scan.Step()) == SQLITE_ROW) {
      if (absl::Status status = visit(scan.BytesAt(0), scan.BytesAt(1)); !status.ok()) {
        return status;
      }
    }
    return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
  }

  absl::StatusOr<std::vector<Entry>> ReadSeries(std::string_view kind, std::string_view key,
                                                int64_t after, int64_t limit) override {
    std::lock_guard lock(mutex_);
    if (dropped_.contains(Series(kind, key))) return std::vector<Entry>();
    Statement& read = statements_->read;
    Use use(read);
    read.Text(1, kind);
    read.Text(2, key);
    read.Integer(3, after);
    read.Integer(4, limit);
    std::vector<Entry> entries;
    int code;
    while ((code = read.Step()) == SQLITE_ROW) {
      entries.push_back({read.IntegerAt(0), std::string(read.BytesAt(1))});
    }
    if (code != SQLITE_DONE) return Error(code);
    return entries;
  }

 private:
  struct Statements {
    std::array<Statement, kActions.size()> actions;
    Statement get, scan, read, remove_piece, remove_all, forget_dropped;
  };
  using Series = std::pair<std::string, std::string>;  // (kind, key)

  // The next start does not find what is written into a file that was removed or moved away.
  absl::Status CheckPath() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    int moved = 0;
    sqlite3_file_control(database_, "main", SQLITE_FCNTL_HAS_MOVED, &moved);
    if (moved == 0) return absl::OkStatus();
    return WithReason(absl::StatusCode::kUnavailable, "STORE_MOVED",
                      absl::StrCat(path_,
                                   " was moved away, removed or replaced under the daemon: "
                                   "put it back as it was, or stop the daemon"));
  }

  // One transaction.
  absl::Status Commit(const std::vector<Mutation>& mutations)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status status = Run("BEGIN IMMEDIATE"); !status.ok()) return status;
    std::set<Series> dropped = dropped_;
    absl::Status status = RunAll(mutations, dropped);
    if (status.ok() && !dropped.empty()) status = RemovePiece(dropped);
    if (status.ok() && hooks_.before_commit) hooks_.before_commit();
    if (status.ok()) status = Run("COMMIT");
    if (!status.ok()) {
      // Some errors have rolled back already; then this one fails and nothing is lost by it.
      sqlite3_exec(database_, "ROLLBACK", nullptr, nullptr, nullptr);
      return status;
    }
    dropped_ = std::move(dropped);
    if (hooks_.after_commit) hooks_.after_commit();
    return absl::OkStatus();
  }

  // Moves the log into the database's file. SQLite would do so by itself, but not report a failed
  // fsync.
  absl::Status Checkpoint() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int code =
        sqlite3_wal_checkpoint_v2(database_, nullptr, SQLITE_CHECKPOINT_PASSIVE, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : Error(code);
  }

  // Called by SQLite in a commit, so under the lock, which clang cannot see.
  static int CountFrames(void* store, sqlite3*, const char*,
                         int frames) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    static_cast<SqliteJobStore*>(store)->frames_ = frames;
    return SQLITE_OK;
  }

  absl::Status Error(int code) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return FromSqlite(database_, code, path_);
  }

  absl::Status Run(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const int code = sqlite3_exec(database_, sql, nullptr, nullptr, nullptr);
    return code == SQLITE_OK ? absl::OkStatus() : Error(code);
  }

  absl::StatusOr<int64_t> Pragma(const char* sql) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Statement statement;
    if (int code = statement.Prepare(database_, sql); code != SQLITE_OK) return Error(code);
    if (int code = statement.Step(); code != SQLITE_ROW) return Error(code);
    return statement.IntegerAt(0);
  }

  absl::Status Migrate() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    absl::StatusOr<int64_t> version = Pragma("PRAGMA user_version");
    if (!version.ok()) return version.status();
    absl::StatusOr<int64_t> application = Pragma("PRAGMA application_id");
    if (!application.ok()) return application.status();
    absl::StatusOr<int64_t> tables = Pragma("SELECT count(*) FROM sqlite_master");
    if (!tables.ok()) return tables.status();
    if ((*version != 0 || *tables != 0) && *application != kApplicationId) {
      return NotOurs(path_);
    }
    const int64_t ours = kMigrations.size();
    if (*version > ours) {
      return WithReason(absl::StatusCode::kFailedPrecondition, "STORE_TOO_NEW",
                        absl::StrCat(path_, " has schema version ", *version, ", this lorad knows ",
                                     ours, "; start the version that wrote it, or a newer one"));
    }
    for (int64_t from = *version; from < ours; ++from) {
      const std::string sql =
          absl::StrCat("BEGIN IMMEDIATE;", kMigrations[from], "PRAGMA user_version=", from + 1,
                       ";PRAGMA application_id=", kApplicationId, ";COMMIT;");
      if (absl::Status status = Run(sql.c_str()); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Prepare() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    statements_ = std::make_unique<Statements>();
    std::vector<std::pair<Statement*, const char*>> all = {
        {&statements_->get, "SELECT value FROM records WHERE kind = ?1 AND key = ?2"},
        {&statements_->scan, "SELECT key, value FROM records WHERE kind = ?1 ORDER BY key"},
        {&statements_->read,
         "SELECT number, value FROM series WHERE kind = ?1 AND key = ?2 AND number > ?3"
         " ORDER BY number LIMIT ?4"},
        {&statements_->remove_piece,
         "DELETE FROM series WHERE kind = ?1 AND key = ?2 AND number IN (SELECT number FROM series"
         " WHERE kind = ?1 AND key = ?2 ORDER BY number LIMIT ?3)"},
        {&statements_->remove_all, "DELETE FROM series WHERE kind = ?1 AND key = ?2"},
        {&statements_->forget_dropped, "DELETE FROM dropped WHERE kind = ?1 AND key = ?2"},
    };
    for (size_t i = 0; i < kActions.size(); ++i) {
      all.push_back({&statements_->actions[i], kActions[i].sql});
    }
    for (auto& [statement, sql] : all) {
      if (int code = statement->Prepare(database_, sql); code != SQLITE_OK) return Error(code);
    }
    return absl::OkStatus();
  }

  absl::Status ReadDropped() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Statement read;
    int code = read.Prepare(database_, "SELECT kind, key FROM dropped");
    if (code != SQLITE_OK) return Error(code);
    while ((code = read.Step()) == SQLITE_ROW) dropped_.emplace(read.BytesAt(0), read.BytesAt(1));
    return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
  }

  absl::Status RunAll(const std::vector<Mutation>& mutations, std::set<Series>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    using Action = Mutation::Action;
    for (const Mutation& mutation : mutations) {
      const Series series(mutation.kind, mutation.key);
      if (mutation.action == Action::kPutEntry && dropped.contains(series)) {
        // It starts over: what is left of the old one goes first.
        if (absl::Status status = RunOn(statements_->remove_all, series); !status.ok()) {
          return status;
        }
        if (absl::Status status = Forget(series, dropped); !status.ok()) return status;
      }
      if (mutation.action == Action::kDeleteSeries) dropped.insert(series);
      const size_t action = static_cast<size_t>(mutation.action);
      Statement& statement = statements_->actions[action];
      Use use(statement);
      statement.Text(1, mutation.kind);
      statement.Text(2, mutation.key);
      if (kActions[action].has_number) statement.Integer(3, mutation.number);
      if (kActions[action].has_value) statement.Blob(4, mutation.value);
      if (int code = statement.Step(); code != SQLITE_DONE) return Error(code);
    }
    return absl::OkStatus();
  }

  // Removes as much of the deleted series as one transaction can bear.
  absl::Status RemovePiece(std::set<Series>& dropped) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (int left = kPieceEntries; left > 0 && !dropped.empty();) {
      const Series series = *dropped.begin();
      if (absl::Status status = RunOn(statements_->remove_piece, series, left); !status.ok()) {
        return status;
      }
      const int removed = sqlite3_changes(database_);
      if (removed == left) return absl::OkStatus();
      left -= removed;
      if (absl::Status status = Forget(series, dropped); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Forget(const Series& series, std::set<Series>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    dropped.erase(series);
    return RunOn(statements_->forget_dropped, series);
  }

  absl::Status RunOn(Statement& statement, const Series& series, int limit = 0)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    Use use(statement);
    statement.Text(1, series.first);
    statement.Text(2, series.second);
    if (limit > 0) statement.Integer(3, limit);
    const int code = statement.Step();
    return code == SQLITE_DONE ? absl::OkStatus() : Error(code);
  }

  const std::string path_;
  const StoreHooks hooks_;
  const std::string vfs_;
  std::mutex mutex_;
  sqlite3* database_ ABSL_GUARDED_BY(mutex_) = nullptr;
  int frames_ ABSL_GUARDED_BY(mutex_) = 0;  // in the log, at the newest commit
  // The first error after which nothing is written any more.
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
  // Committed so; nothing of them can be read any more.
  std::set<Series> dropped_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<Statements> statements_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

Mutation PutRecord(std::string_view kind, std::string_view key, std::string value) {
  return {Mutation::Action::kPutRecord, std::string(kind), std::string(key), 0, std::move(value)};
}
Mutation DeleteRecord(std::string_view kind, std::string_view key) {
  return {Mutation::Action::kDeleteRecord, std::string(kind), std::string(key), 0, ""};
}
Mutation PutEntry(std::string_view kind, std::string_view key, int64_t number, std::string value) {
  return {Mutation::Action::kPutEntry, std::string(kind), std::string(key), number,
          std::move(value)};
}
Mutation DeleteEntry(std::string_view kind, std::string_view key, int64_t number) {
  return {Mutation::Action::kDeleteEntry, std::string(kind), std::string(key), number, ""};
}
Mutation DeleteSeries(std::string_view kind, std::string_view key) {
  return {Mutation::Action::kDeleteSeries, std::string(kind), std::string(key), 0, ""};
}
Mutation TrimSeries(std::string_view kind, std::string_view key, int64_t number) {
  return {Mutation::Action::kTrimSeries, std::string(kind), std::string(key), number, ""};
}

// The header of SQLite's format: https://www.sqlite.org/fileformat2.html#the_database_header
absl::Status JobStore::CheckIsOurs(const std::string& directory) {
  constexpr size_t kHeaderBytes = 100, kPages = 28, kApplication = 68;
  const std::string path = absl::StrCat(directory, "/", kFile);
  std::error_code error;
  const std::filesystem::file_status file = std::filesystem::status(path, error);
  if (std::filesystem::exists(file) && !std::filesystem::is_regular_file(file)) {
    return WithReason(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
                      absl::StrCat(path, " is no file: move it away, or name another --data-dir"));
  }
  std::string header(kHeaderBytes, '\0');
  if (!std::ifstream(path, std::ios::binary).read(header.data(), kHeaderBytes)) {
    return absl::OkStatus();
  }
  const auto number = [&](size_t at) {
    uint32_t value = 0;  // the most significant byte first
    for (size_t i = 0; i < 4; ++i) value = value << 8 | static_cast<unsigned char>(header[at + i]);
    return value;
  };
  if (number(kApplication) == kApplicationId || !header.starts_with("SQLite format 3")) {
    return absl::OkStatus();
  }
  // One that was made and not closed yet says in its log what it is, or has no table.
  const bool logged = std::filesystem::file_size(path + "-wal", error) > 0 && !error;
  if (number(kApplication) == 0 && (logged || number(kPages) <= 1)) return absl::OkStatus();
  return NotOurs(path);
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& directory,
                                                         StoreHooks hooks, const std::string& vfs) {
  auto store =
      std::make_unique<SqliteJobStore>(absl::StrCat(directory, "/", kFile), std::move(hooks), vfs);
  if (absl::Status status = store->Init(); !status.ok()) return status;
  return std::unique_ptr<JobStore>(std::move(store));
}

}  // namespace lorad::storage
