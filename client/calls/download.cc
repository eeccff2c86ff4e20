#include "client/calls/download.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <system_error>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "client/calls/error.h"
#include "client/calls/sha256.h"

namespace lorad::client {
namespace {

namespace fs = std::filesystem;

constexpr int kAttemptsMax = 5;
// Files so large, a model's shards, come so many at once: on either side one file takes one core.
constexpr std::int64_t kLargeBytes = 16 << 20;
constexpr std::size_t kAtOnce = 3;

class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int get() const { return fd_; }

 private:
  const int fd_;
};

absl::Status Unwritable(const fs::path& path, int error) {
  return Error("FILE_UNWRITABLE", absl::StrCat(path.string(), ": ", std::strerror(error)));
}

absl::Status WithMore(const absl::Status& status, const std::string& words) {
  absl::Status more(status.code(), absl::StrCat(status.message(), words));
  status.ForEachPayload(
      [&](absl::string_view type, const absl::Cord& payload) { more.SetPayload(type, payload); });
  return more;
}

// In pieces: for a larger one Linux takes large pages for its cache, and a virtual machine that
// gives its free memory back often has to get those from its host first, which takes four times as
// long as the copy.
bool WriteAll(int fd, absl::string_view bytes) {
  constexpr std::size_t kPieceBytes = 16 << 10;
  while (!bytes.empty()) {
    const ssize_t written = write(fd, bytes.data(), std::min(bytes.size(), kPieceBytes));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

// Has the system write to the disk what is written to a file, piece by piece, while more comes: the
// sync at its end is then short. Advice alone: the sync finds what goes wrong.
class WriteBehind {
 public:
  WriteBehind(int fd, std::int64_t size) : fd_(fd), begun_(size), size_(size) {}

  void Wrote(std::size_t bytes) {
    size_ += static_cast<std::int64_t>(bytes);
    if (size_ - begun_ < kPieceBytes) return;
    static_cast<void>(sync_file_range(fd_, begun_, size_ - begun_, SYNC_FILE_RANGE_WRITE));
    begun_ = size_;
  }

 private:
  static constexpr std::int64_t kPieceBytes = 8 << 20;

  const int fd_;
  std::int64_t begun_;
  std::int64_t size_;
};

// Empty where the file cannot be read.
std::string Sha256OfFile(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return "";
  Sha256 hash;
  std::string buffer(1 << 16, '\0');
  for (;;) {
    const ssize_t count = read(file.get(), buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return "";
    if (count == 0) break;
    hash.Update({buffer.data(), static_cast<std::size_t>(count)});
  }
  return hash.HexDigest();
}

absl::Status Sync(const fs::path& path) {
  const Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0 || fsync(file.get()) != 0) return Unwritable(path, errno);
  return absl::OkStatus();
}

std::int64_t SizeOf(const fs::path& path) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return error ? 0 : static_cast<std::int64_t>(size);
}

// Appends what is missing of the file. ok = all of its bytes are there, right or wrong.
absl::Status Append(const fs::path& path, const RemoteFile& file, const Fetch& fetch,
                    TransferBar* bar) {
  const Descriptor out(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (out.get() < 0) return Unwritable(path, errno);
  int write_error = 0;
  const std::int64_t before = SizeOf(path);
  WriteBehind behind(out.get(), before);
  const Sink sink = [&](absl::string_view bytes) {
    if (WriteAll(out.get(), bytes)) {
      behind.Wrote(bytes.size());
      if (bar) bar->Add(static_cast<std::int64_t>(bytes.size()));
      return true;
    }
    write_error = errno;
    return false;
  };
  const absl::Status fetched = fetch(file, before, sink);
  if (write_error != 0) return Unwritable(path, write_error);
  // Of bytes with no sha256 to tell by, only those stay that came whole, or were cut off.
  const bool wrong = file.sha256.empty() && !fetched.ok() && !absl::IsUnavailable(fetched);
  if (wrong && ftruncate(out.get(), before) != 0) return Unwritable(path, errno);
  return fetched;
}

absl::Status DownloadFile(const fs::path& path, const RemoteFile& file, const Fetch& fetch,
                          TransferBar* bar) {
  absl::Status status = absl::OkStatus();
  std::error_code ignored;  // what stays in the way is found by its size or its hash
  const auto remove = [&] {
    if (bar) bar->Skip(-SizeOf(path));
    fs::remove(path, ignored);
  };
  if (bar) bar->Skip(SizeOf(path));
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    if (SizeOf(path) > file.size_bytes) remove();
    if (SizeOf(path) < file.size_bytes || file.size_bytes == 0) {
      status = Append(path, file, fetch, bar);
    }
    if (absl::IsUnavailable(status) || absl::IsDataLoss(status)) continue;
    if (!status.ok()) return status;
    const bool right = file.sha256.empty() || Sha256OfFile(path) == file.sha256;
    if (SizeOf(path) == file.size_bytes && right) return Sync(path);
    // Left over from another checkpoint, or damaged on the way: once more from the first byte.
    remove();
  }
  if (!status.ok()) return status;
  return Error("CHECKSUM_MISMATCH",
               absl::StrCat(path.string(), ": the bytes that came do not have the sha256 ",
                            file.sha256, " and the size ", file.size_bytes,
                            ": what the daemon has of this checkpoint is damaged, take another "
                            "step's (lora checkpoint ls)"));
}

// Hands out files to threads until one of them fails.
class FileQueue {
 public:
  explicit FileQueue(const std::vector<const RemoteFile*>& files) : files_(files) {}

  // Null at the end.
  const RemoteFile* Next() {
    std::lock_guard lock(mutex_);
    return status_.ok() && begun_ < files_.size() ? files_[begun_++] : nullptr;
  }

  void Ended(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    status_.Update(status);
  }

  // The first one's that failed.
  absl::Status status() const {
    std::lock_guard lock(mutex_);
    return status_;
  }

 private:
  const std::vector<const RemoteFile*>& files_;
  mutable std::mutex mutex_;
  std::size_t begun_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

absl::Status DownloadFiles(const fs::path& directory, const std::vector<RemoteFile>& files,
                           const Fetch& fetch, TransferBar* bar) {
  std::vector<const RemoteFile*> large;
  for (const RemoteFile& file : files) {
    if (file.size_bytes >= kLargeBytes) {
      large.push_back(&file);
    } else if (absl::Status s = DownloadFile(directory / file.name, file, fetch, bar); !s.ok()) {
      return s;
    }
  }
  FileQueue queue(large);
  const auto run = [&] {
    while (const RemoteFile* file = queue.Next()) {
      queue.Ended(DownloadFile(directory / file->name, *file, fetch, bar));
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < std::min(kAtOnce, large.size()); ++i) threads.emplace_back(run);
  run();
  for (std::thread& thread : threads) thread.join();
  return queue.status();
}

}  // namespace

absl::Status DownloadDirectory(const fs::path& directory, const std::vector<RemoteFile>& files,
                               const Fetch& fetch, const std::string& tag, TransferBar* bar) {
  std::error_code error;
  if (directory.empty()) {
    return Error("FILE_UNWRITABLE", "the directory to make has no name: give one with -o");
  }
  if (fs::exists(directory, error) && !fs::is_directory(directory, error)) {
    return Error("DIRECTORY_EXISTS", absl::StrCat(directory.string(),
                                                  ": is there already, and no directory; name "
                                                  "another with -o"));
  }
  if (fs::exists(directory, error) && !fs::is_empty(directory, error)) {
    return Error(
        "DIRECTORY_EXISTS",
        absl::StrCat(directory.string(),
                     ": is there already and not empty; name another with -o, or remove it"));
  }
  fs::path partial = fs::absolute(directory, error).lexically_normal();
  if (error) return Unwritable(directory, error.value());
  if (!partial.has_filename()) partial = partial.parent_path();
  const fs::path whole = partial;
  partial += tag.empty() ? ".partial" : "." + tag + ".partial";
  fs::create_directories(partial, error);
  if (error) return Unwritable(partial, error.value());
  const Descriptor lock(open(partial.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock.get() < 0) return Unwritable(partial, errno);
  const bool taken = flock(lock.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (taken || !fs::exists(partial, error)) {  // it has its name by now
    return Error("DIRECTORY_EXISTS", absl::StrCat(directory.string(),
                                                  ": another lora is fetching into it; wait for "
                                                  "that one, or name another with -o"));
  }
  const absl::Status fetched = DownloadFiles(partial, files, fetch, bar);
  if (absl::IsUnavailable(fetched)) {
    return WithMore(fetched, absl::StrCat("; what has come stays in ", partial.string(),
                                          ": the same command goes on from there"));
  }
  if (!fetched.ok()) return fetched;
  if (const absl::Status status = Sync(partial); !status.ok()) return status;
  fs::rename(partial, whole, error);  // replaces an empty directory
  if (error == std::errc::directory_not_empty || error == std::errc::file_exists) {
    return Error("DIRECTORY_EXISTS", absl::StrCat(directory.string(),
                                                  ": was made by somebody else meanwhile; what has "
                                                  "come is in ",
                                                  partial.string()));
  }
  if (error) return Unwritable(whole, error.value());
  return Sync(whole.parent_path());
}

}  // namespace lorad::client
