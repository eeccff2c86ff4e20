#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace lorad::storage {

// A file that is being written, front to back. Not thread-safe. Dropped without Close, its
// descriptor is closed and what was not synced may be lost.
class WritableFile {
 public:
  virtual ~WritableFile() = default;
  // All of `bytes` or an error (RESOURCE_EXHAUSTED: the disk is full).
  virtual absl::Status Append(std::string_view bytes) = 0;
  // The bytes that were appended survive a power loss (fsync).
  virtual absl::Status Sync() = 0;
  virtual absl::Status Close() = 0;
};

// A file that is open for reading: it stays what it is when its name is removed or given to
// another. Thread-safe.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  virtual absl::StatusOr<uint64_t> Size() const = 0;
  // All `bytes` from `offset` or an error (OUT_OF_RANGE: the file ends before).
  virtual absl::Status ReadAt(uint64_t offset, uint64_t bytes, void* to) const = 0;
};

// The seam between lorad and its disk. Every durable write of the coordinator goes through it, so
// that a test can stop the process before or after each effect, or take the power away. Everything
// that it makes is for its user alone (files 0600, directories 0700). Thread-safe. Errors name path
// and cause, see FileError.
class Files {
 public:
  virtual ~Files() = default;

  // Opens `path` for writing, emptied if it is there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) = 0;
  // Opens `path` for writing at its end, created if it is not there.
  virtual absl::StatusOr<std::unique_ptr<WritableFile>> OpenAppend(const std::string& path) = 0;
  // Atomic; replaces a file (or an empty directory) at `to`. Durable only after SyncDirectory of
  // the parent.
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;
  // Makes creations, renames and removals in `path` survive a power loss.
  virtual absl::Status SyncDirectory(const std::string& path) = 0;
  // One file or one empty directory.
  virtual absl::Status Remove(const std::string& path) = 0;
  // With all its parents; a directory that is there already is no error.
  virtual absl::Status MakeDirectory(const std::string& path) = 0;

  // Names (not paths) in a directory, sorted, without "." and "..".
  virtual absl::StatusOr<std::vector<std::string>> List(const std::string& path) = 0;
  // The whole file; OUT_OF_RANGE if it is longer than `limit` bytes.
  virtual absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) = 0;
  // At most `length` bytes from `offset`; fewer only at the end of the file.
  virtual absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                                uint64_t length) = 0;
  // A regular file, else INVALID_ARGUMENT. Here: what has that name whenever it is read.
  virtual absl::StatusOr<std::unique_ptr<ReadableFile>> OpenToRead(const std::string& path);
  virtual absl::StatusOr<uint64_t> Size(const std::string& path) = 0;
  virtual bool Exists(const std::string& path) = 0;
  // A link counts as what it leads to.
  virtual bool IsDirectory(const std::string& path) = 0;
  // A symbolic link, wherever it leads. Here: there are none.
  virtual bool IsLink(const std::string&) { return false; }
};

// The operating system's. Never freed.
Files& RealFiles();

// The status for an errno of `what` ("write") at `path`: NOT_FOUND, ALREADY_EXISTS,
// PERMISSION_DENIED, RESOURCE_EXHAUSTED (no space), UNAVAILABLE (read-only, no descriptors, no
// memory, the share is gone: it may pass without anyone changing the path), else INTERNAL.
absl::Status FileError(std::string_view what, const std::string& path, int error);

inline constexpr uint64_t kReadAllLimit = uint64_t{64} << 20;

// `path` holds all of `bytes` or what it held before, whatever happens in between: temporary file
// beside it (path + ".tmp"), fsync, rename, fsync of the directory.
absl::Status AtomicWrite(Files& files, const std::string& path, std::string_view bytes);

// Writes and fsyncs, without the atomicity: for files in a directory that is itself renamed into
// place.
absl::Status WriteSynced(Files& files, const std::string& path, std::string_view bytes);

// Makes `path` with all its parents so that it survives a power loss, also where an earlier attempt
// was cut short.
absl::Status MakeDirectoryDurably(Files& files, const std::string& path);

// A file or a whole directory; absent is no error. Not atomic.
absl::Status RemoveTree(Files& files, const std::string& path);

// "a" + "b" -> "a/b".
std::string JoinPath(std::string_view directory, std::string_view name);
// "a/b" -> "a", "b" -> ".".
std::string ParentPath(std::string_view path);

}  // namespace lorad::storage
