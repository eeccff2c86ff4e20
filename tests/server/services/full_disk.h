// A file system that is full after so many bytes; all else is real.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "storage/files/files.h"

namespace lorad::server {

class FullDisk : public storage::Files {
 public:
  explicit FullDisk(int64_t bytes) : left_(bytes) {}

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Create(const std::string& path) override {
    return Limited(real_.Create(path));
  }
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> OpenAppend(
      const std::string& path) override {
    return Limited(real_.OpenAppend(path));
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return real_.Rename(from, to);
  }
  absl::Status SyncDirectory(const std::string& path) override { return real_.SyncDirectory(path); }
  absl::Status Remove(const std::string& path) override { return real_.Remove(path); }
  absl::Status MakeDirectory(const std::string& path) override { return real_.MakeDirectory(path); }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return real_.List(path);
  }
  absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) override {
    return real_.ReadAll(path, limit);
  }
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    return real_.ReadRange(path, offset, length);
  }
  absl::StatusOr<uint64_t> Size(const std::string& path) override { return real_.Size(path); }
  bool Exists(const std::string& path) override { return real_.Exists(path); }
  bool IsDirectory(const std::string& path) override { return real_.IsDirectory(path); }

 private:
  class File final : public storage::WritableFile {
   public:
    File(FullDisk& disk, std::unique_ptr<storage::WritableFile> file)
        : disk_(disk), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      if ((disk_.left_ -= static_cast<int64_t>(bytes.size())) < 0) {
        return absl::ResourceExhaustedError("no space left on device");
      }
      return file_->Append(bytes);
    }
    absl::Status Sync() override { return file_->Sync(); }
    absl::Status Close() override { return file_->Close(); }

   private:
    FullDisk& disk_;
    std::unique_ptr<storage::WritableFile> file_;
  };

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Limited(
      absl::StatusOr<std::unique_ptr<storage::WritableFile>> file) {
    if (!file.ok()) return file.status();
    return std::make_unique<File>(*this, *std::move(file));
  }

  storage::Files& real_ = storage::RealFiles();
  std::atomic<int64_t> left_;
};

}  // namespace lorad::server
