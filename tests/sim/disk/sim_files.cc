#include "tests/sim/disk/sim_files.h"

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"

namespace lorad::sim {
namespace {

absl::Status ToStatus(std::string_view what, const std::string& path, int error) {
  return error == 0 ? absl::OkStatus() : storage::FileError(what, path, error);
}

class SimFile final : public storage::WritableFile {
 public:
  SimFile(SimDisk& disk, SimDisk::Handle handle, uint64_t end)
      : disk_(disk), handle_(std::move(handle)), end_(end) {}

  absl::Status Append(std::string_view bytes) override {
    const uint64_t at = std::exchange(end_, end_ + bytes.size());
    return ToStatus("write", handle_.path, disk_.Write(handle_, at, bytes));
  }
  absl::Status Sync() override { return ToStatus("sync", handle_.path, disk_.Sync(handle_)); }
  absl::Status Close() override { return absl::OkStatus(); }

 private:
  SimDisk& disk_;
  const SimDisk::Handle handle_;
  uint64_t end_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<storage::WritableFile>> SimFiles::Create(const std::string& path) {
  SimDisk::Handle handle;
  const int error = disk_.Open(path, {.create = true, .truncate = true}, &handle);
  if (error != 0) return storage::FileError("open to write", path, error);
  return std::make_unique<SimFile>(disk_, std::move(handle), 0);
}

absl::StatusOr<std::unique_ptr<storage::WritableFile>> SimFiles::OpenAppend(
    const std::string& path) {
  SimDisk::Handle handle;
  const int error = disk_.Open(path, {.create = true}, &handle);
  if (error != 0) return storage::FileError("open to write", path, error);
  const uint64_t end = disk_.SizeOf(handle);
  return std::make_unique<SimFile>(disk_, std::move(handle), end);
}

absl::Status SimFiles::Rename(const std::string& from, const std::string& to) {
  return ToStatus("rename to " + to, from, disk_.Rename(from, to));
}

absl::Status SimFiles::SyncDirectory(const std::string& path) {
  return ToStatus("sync", path, disk_.SyncDirectory(path));
}

absl::Status SimFiles::Remove(const std::string& path) {
  return ToStatus("remove", path, disk_.Remove(path));
}

absl::Status SimFiles::MakeDirectory(const std::string& path) {
  if (path == "/" || IsDirectory(path)) return absl::OkStatus();
  if (absl::Status parent = MakeDirectory(storage::ParentPath(path)); !parent.ok()) return parent;
  return ToStatus("make directory", path, disk_.MakeDirectory(path));
}

absl::StatusOr<std::vector<std::string>> SimFiles::List(const std::string& path) {
  std::vector<std::string> names;
  const int error = disk_.List(path, &names);
  if (error != 0) return storage::FileError("list", path, error);
  return names;
}

absl::StatusOr<std::string> SimFiles::ReadAll(const std::string& path, uint64_t limit) {
  absl::StatusOr<std::string> bytes = ReadRange(path, 0, limit + 1);
  if (bytes.ok() && bytes->size() > limit) {
    return absl::OutOfRangeError(absl::StrCat(path, ": longer than ", limit, " bytes"));
  }
  return bytes;
}

absl::StatusOr<std::string> SimFiles::ReadRange(const std::string& path, uint64_t offset,
                                                uint64_t length) {
  SimDisk::Handle handle;
  if (int error = disk_.Open(path, {}, &handle); error != 0) {
    return storage::FileError("open", path, error);
  }
  std::string bytes;
  if (int error = disk_.Read(handle, offset, length, &bytes); error != 0) {
    return storage::FileError("read", path, error);
  }
  return bytes;
}

absl::StatusOr<uint64_t> SimFiles::Size(const std::string& path) {
  SimDisk::Status status;
  if (int error = disk_.Stat(path, &status); error != 0) {
    return storage::FileError("stat", path, error);
  }
  return status.bytes;
}

bool SimFiles::Exists(const std::string& path) {
  SimDisk::Status status;
  return disk_.Stat(path, &status) == 0;
}

bool SimFiles::IsDirectory(const std::string& path) {
  SimDisk::Status status;
  return disk_.Stat(path, &status) == 0 && status.is_directory;
}

}  // namespace lorad::sim
