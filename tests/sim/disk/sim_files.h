// storage::Files on a simulated disk.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "storage/files/files.h"
#include "tests/sim/disk/sim_disk.h"

namespace lorad::sim {

class SimFiles final : public storage::Files {
 public:
  // `disk` must outlive it and every file it opens.
  explicit SimFiles(SimDisk& disk) : disk_(disk) {}

  absl::StatusOr<std::unique_ptr<storage::WritableFile>> Create(const std::string& path) override;
  absl::StatusOr<std::unique_ptr<storage::WritableFile>> OpenAppend(
      const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status SyncDirectory(const std::string& path) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status MakeDirectory(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override;
  absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) override;
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override;
  absl::StatusOr<uint64_t> Size(const std::string& path) override;
  bool Exists(const std::string& path) override;
  bool IsDirectory(const std::string& path) override;

 private:
  SimDisk& disk_;
};

}  // namespace lorad::sim
