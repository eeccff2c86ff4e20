#include "storage/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "storage/files/errors.h"

namespace lorad::storage {
namespace {

constexpr mode_t kFileMode = 0600;
constexpr mode_t kDirectoryMode = 0700;

absl::StatusCode CodeOf(int error) {
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return absl::StatusCode::kNotFound;
    case EEXIST:
    case ENOTEMPTY:
      return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
      return absl::StatusCode::kPermissionDenied;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return absl::StatusCode::kResourceExhausted;
    case EROFS:
    case EMFILE:
    case ENFILE:
    case ENOMEM:
    case ESTALE:
    case EHOSTDOWN:
    case ETIMEDOUT:
      return absl::StatusCode::kUnavailable;
    default:
      return absl::StatusCode::kInternal;
  }
}

// Owns a descriptor.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (number_ >= 0) close(number_);
  }
  int number() const { return number_; }
  int Release() { return std::exchange(number_, -1); }

 private:
  int number_;
};

class RealWritableFile : public WritableFile {
 public:
  RealWritableFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  absl::Status Append(std::string_view bytes) override {
    while (!bytes.empty()) {
      const ssize_t written = write(descriptor_.number(), bytes.data(), bytes.size());
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) return FileError("write", path_, errno);
      bytes.remove_prefix(static_cast<size_t>(written));
    }
    return absl::OkStatus();
  }

  absl::Status Sync() override {
    if (fsync(descriptor_.number()) != 0) return FileError("sync", path_, errno);
    return absl::OkStatus();
  }

  absl::Status Close() override {
    if (close(descriptor_.Release()) != 0) return FileError("close", path_, errno);
    return absl::OkStatus();
  }

 private:
  const std::string path_;
  Descriptor descriptor_;
};

// At most `bytes` from `offset`; fewer only at the end of the file.
absl::StatusOr<uint64_t> Pread(int descriptor, const std::string& path, uint64_t offset,
                               uint64_t bytes, void* to) {
  uint64_t got = 0;
  while (got < bytes) {
    const ssize_t count = pread(descriptor, static_cast<char*>(to) + got, bytes - got,
                                static_cast<off_t>(offset + got));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return FileError("read", path, errno);
    if (count == 0) break;
    got += static_cast<uint64_t>(count);
  }
  return got;
}

absl::Status EndsBefore(const std::string& path, uint64_t end) {
  return absl::OutOfRangeError(absl::StrCat(path, ": ends before byte ", end));
}

// Of a regular file that was to be opened, as it is now.
absl::StatusOr<uint64_t> SizeOf(const Descriptor& file, const std::string& path) {
  if (file.number() < 0) return FileError("open", path, errno);
  struct stat status;
  if (fstat(file.number(), &status) != 0) return FileError("stat", path, errno);
  if (!S_ISREG(status.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  return static_cast<uint64_t>(status.st_size);
}

// O_NONBLOCK: a FIFO where a file should be must not hold us up.
int OpenDescriptor(const std::string& path) {
  return open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
}

class RealReadableFile : public ReadableFile {
 public:
  RealReadableFile(std::string path, int descriptor)
      : path_(std::move(path)), descriptor_(descriptor) {}

  absl::StatusOr<uint64_t> Size() const override { return SizeOf(descriptor_, path_); }
  absl::Status ReadAt(uint64_t offset, uint64_t bytes, void* to) const override {
    const absl::StatusOr<uint64_t> got = Pread(descriptor_.number(), path_, offset, bytes, to);
    if (!got.ok()) return got.status();
    return *got == bytes ? absl::OkStatus() : EndsBefore(path_, offset + bytes);
  }

 private:
  const std::string path_;
  const Descriptor descriptor_;
};

// Of files that keep none open.
class NamedFile : public ReadableFile {
 public:
  NamedFile(Files& files, std::string path) : files_(files), path_(std::move(path)) {}

  absl::StatusOr<uint64_t> Size() const override { return files_.Size(path_); }
  absl::Status ReadAt(uint64_t offset, uint64_t bytes, void* to) const override {
    const absl::StatusOr<std::string> read = files_.ReadRange(path_, offset, bytes);
    if (!read.ok()) return read.status();
    if (read->size() < bytes) return EndsBefore(path_, offset + bytes);
    memcpy(to, read->data(), read->size());
    return absl::OkStatus();
  }

 private:
  Files& files_;
  const std::string path_;
};

class SystemFiles : public Files {
 public:
  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    return OpenToWrite(path, O_TRUNC);
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenAppend(const std::string& path) override {
    return OpenToWrite(path, O_APPEND);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    return FileError("rename to " + to, from, errno);
  }

  absl::Status SyncDirectory(const std::string& path) override {
    const Descriptor directory(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (directory.number() < 0) return FileError("open", path, errno);
    if (fsync(directory.number()) != 0) return FileError("sync", path, errno);
    return absl::OkStatus();
  }

  absl::Status Remove(const std::string& path) override {
    if (remove(path.c_str()) != 0) return FileError("remove", path, errno);
    return absl::OkStatus();
  }

  absl::Status MakeDirectory(const std::string& path) override {
    if (path.empty() || path == "/" || path == ".") return absl::OkStatus();
    if (mkdir(path.c_str(), kDirectoryMode) == 0) return absl::OkStatus();
    const int error = errno;
    if (error == EEXIST && IsDirectory(path)) return absl::OkStatus();
    if (error != ENOENT) return FileError("make directory", path, error);
    if (absl::Status parent = MakeDirectory(ParentPath(path)); !parent.ok()) return parent;
    if (mkdir(path.c_str(), kDirectoryMode) == 0 || IsDirectory(path)) return absl::OkStatus();
    return FileError("make directory", path, errno);
  }

  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    DIR* directory = opendir(path.c_str());
    if (directory == nullptr) return FileError("list", path, errno);
    std::vector<std::string> names;
    while (const dirent* entry = readdir(directory)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
    }
    closedir(directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) override {
    // One byte more than the limit distinguishes a file that is too long from one that just fits.
    absl::StatusOr<std::string> bytes = ReadRange(path, 0, limit + 1);
    if (bytes.ok() && bytes->size() > limit) {
      return absl::OutOfRangeError(absl::StrCat(path, ": longer than ", limit, " bytes"));
    }
    return bytes;
  }

  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    const Descriptor file(OpenDescriptor(path));
    const absl::StatusOr<uint64_t> size = SizeOf(file, path);
    if (!size.ok()) return size.status();
    std::string bytes(std::min(length, *size > offset ? *size - offset : 0), '\0');
    const absl::StatusOr<uint64_t> got =
        Pread(file.number(), path, offset, bytes.size(), bytes.data());
    if (!got.ok()) return got.status();
    bytes.resize(*got);
    return bytes;
  }

  absl::StatusOr<std::unique_ptr<ReadableFile>> OpenToRead(const std::string& path) override {
    Descriptor file(OpenDescriptor(path));
    if (absl::Status status = SizeOf(file, path).status(); !status.ok()) return status;
    return std::make_unique<RealReadableFile>(path, file.Release());
  }

  absl::StatusOr<uint64_t> Size(const std::string& path) override {
    struct stat status;
    if (stat(path.c_str(), &status) != 0) return FileError("stat", path, errno);
    return static_cast<uint64_t>(status.st_size);
  }

  bool Exists(const std::string& path) override {
    struct stat status;
    return lstat(path.c_str(), &status) == 0;
  }

  bool IsDirectory(const std::string& path) override {
    struct stat status;
    return stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode);
  }

  bool IsLink(const std::string& path) override {
    struct stat status;
    return lstat(path.c_str(), &status) == 0 && S_ISLNK(status.st_mode);
  }

 private:
  static absl::StatusOr<std::unique_ptr<WritableFile>> OpenToWrite(const std::string& path,
                                                                   int flags) {
    const int descriptor = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | flags, kFileMode);
    if (descriptor < 0) return FileError("open to write", path, errno);
    return std::make_unique<RealWritableFile>(path, descriptor);
  }
};

}  // namespace

Files& RealFiles() {
  static SystemFiles* const files = new SystemFiles;
  return *files;
}

absl::Status FileError(std::string_view what, const std::string& path, int error) {
  return absl::Status(CodeOf(error),
                      absl::StrCat(path, ": cannot ", Absl(what), ": ", strerror(error)));
}

absl::StatusOr<std::unique_ptr<ReadableFile>> Files::OpenToRead(const std::string& path) {
  if (IsDirectory(path)) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": not a regular file"));
  }
  if (absl::Status status = Size(path).status(); !status.ok()) return status;
  return std::make_unique<NamedFile>(*this, path);
}

absl::Status WriteSynced(Files& files, const std::string& path, std::string_view bytes) {
  absl::StatusOr<std::unique_ptr<WritableFile>> file = files.Create(path);
  if (!file.ok()) return file.status();
  if (absl::Status status = (*file)->Append(bytes); !status.ok()) return status;
  if (absl::Status status = (*file)->Sync(); !status.ok()) return status;
  return (*file)->Close();
}

absl::Status AtomicWrite(Files& files, const std::string& path, std::string_view bytes) {
  const std::string temporary = absl::StrCat(path, ".tmp");
  if (absl::Status status = WriteSynced(files, temporary, bytes); !status.ok()) return status;
  if (absl::Status status = files.Rename(temporary, path); !status.ok()) return status;
  return files.SyncDirectory(ParentPath(path));
}

absl::Status MakeDirectoryDurably(Files& files, const std::string& path) {
  const std::string parent = ParentPath(path);
  const bool there = files.IsDirectory(path);
  if (!there && parent != path) {
    // From above, so that where this is cut short only the lowest one may lack its sync.
    if (absl::Status status = MakeDirectoryDurably(files, parent); !status.ok()) return status;
    if (absl::Status status = files.MakeDirectory(path); !status.ok()) return status;
  }
  const absl::Status synced = files.SyncDirectory(parent);
  // A file in a directory that we may not read was made by someone else.
  return there && absl::IsPermissionDenied(synced) ? absl::OkStatus() : synced;
}

absl::Status RemoveTree(Files& files, const std::string& path) {
  if (!files.Exists(path)) return absl::OkStatus();
  if (files.IsDirectory(path)) {
    // Takes an empty directory, and a link to one without following it.
    if (files.Remove(path).ok()) return absl::OkStatus();
    absl::StatusOr<std::vector<std::string>> names = files.List(path);
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (absl::Status status = RemoveTree(files, JoinPath(path, name)); !status.ok()) {
        return status;
      }
    }
  }
  return files.Remove(path);
}

std::string JoinPath(std::string_view directory, std::string_view name) {
  std::string path(directory);
  if (!path.empty() && path.back() != '/') path += '/';
  path += name;
  return path;
}

std::string ParentPath(std::string_view path) {
  while (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
  const size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return ".";
  return std::string(path.substr(0, std::max<size_t>(slash, 1)));
}

}  // namespace lorad::storage
