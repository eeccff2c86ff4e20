// The coordinator's durable records: bytes under keys, in one SQLite file
// (docs/formats/data_dir.md).
//
// Two shapes: a record is one value under (kind, key); a series is values under (kind, key)
// numbered by an integer and read in its order. The meaning of the bytes is the caller's affair.
// Apply() makes all its mutations durable or none.
//
// Threads: any; one connection behind one lock (SQLite before 3.51.3 can corrupt a WAL database
// with two).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::storage {

struct Mutation {
  enum class Action {
    kPutRecord,     // kind, key, value
    kDeleteRecord,  // kind, key
    kPutEntry,      // kind, key, number, value
    kDeleteEntry,   // kind, key, number
    // kind, key: all its entries. None can be read any more; they are removed in pieces, with this
    // transaction and those that follow.
    kDeleteSeries,
    kTrimSeries,  // kind, key: its entries up to and with number
  };
  Action action = Action::kPutRecord;
  std::string kind;
  std::string key;
  int64_t number = 0;
  std::string value;

  bool operator==(const Mutation&) const = default;
};

Mutation PutRecord(std::string_view kind, std::string_view key, std::string value);
Mutation DeleteRecord(std::string_view kind, std::string_view key);
Mutation PutEntry(std::string_view kind, std::string_view key, int64_t number, std::string value);
Mutation DeleteEntry(std::string_view kind, std::string_view key, int64_t number);
Mutation DeleteSeries(std::string_view kind, std::string_view key);
Mutation TrimSeries(std::string_view kind, std::string_view key, int64_t number);

struct Record {
  std::string key;
  std::string value;
};

struct Entry {
  int64_t number = 0;
  std::string value;
};

// Called around every durable turn, so that a test can end the process there. Null = nothing.
struct StoreHooks {
  std::function<void()> before_commit;
  std::function<void()> after_commit;
};

class JobStore {
 public:
  // DATA_LOSS (STORE_CORRUPT) where DIRECTORY/lorad.sqlite is no file, or another program's
  // database, by its first bytes alone: nothing is written, and no lock is needed. What they do not
  // show Open finds.
  static absl::Status CheckIsOurs(const std::string& directory);
  // Opens or makes DIRECTORY/lorad.sqlite and brings its schema up to date. The caller holds the
  // directory's lock. `vfs`: the name of a registered sqlite3_vfs; empty = the operating system's.
  // Errors: FAILED_PRECONDITION (STORE_TOO_NEW) for a file of a later version; DATA_LOSS
  // (STORE_CORRUPT); RESOURCE_EXHAUSTED (DISK_FULL); UNAVAILABLE (STORE_READ_ONLY); else what the
  // system says.
  static absl::StatusOr<std::unique_ptr<JobStore>> Open(const std::string& directory,
                                                        StoreHooks hooks = {},
                                                        const std::string& vfs = "");
  virtual ~JobStore() = default;

  // All or nothing, and on the disk when it returns OK. RESOURCE_EXHAUSTED (DISK_FULL) and
  // UNAVAILABLE (STORE_READ_ONLY; STORE_MOVED, where the file is not at its path any more): nothing
  // was changed, and it may be tried again. After any other error (INTERNAL, STORE_SYNC_FAILED, for
  // a failed fsync: the kernel may have dropped what it could not write) what the disk holds is not
  // known: every later call returns it again, and only a new start finds out.
  virtual absl::Status Apply(const std::vector<Mutation>& mutations) = 0;

  virtual absl::StatusOr<std::optional<std::string>> GetRecord(std::string_view kind,
                                                               std::string_view key) = 0;
  // All records of a kind in the order of their keys, one at a time. The callback must not call the
  // store.
  virtual absl::Status ScanRecords(
      std::string_view kind,
      const std::function<absl::Status(std::string_view key, std::string_view value)>& visit) = 0;
  // At most `limit` entries with number > `after`, ascending.
  virtual absl::StatusOr<std::vector<Entry>> ReadSeries(std::string_view kind, std::string_view key,
                                                        int64_t after, int64_t limit) = 0;
};

}  // namespace lorad::storage
