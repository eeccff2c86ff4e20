#include "server/leftovers.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "storage/checkpoint.h"

namespace lorad::server {
namespace {

// Goes through what no record names.
class Sweeper {
 public:
  Sweeper(const DataDir& data_dir, storage::Files& files, const std::vector<std::string>& in_use)
      : data_dir_(data_dir), files_(files), keep_(in_use.begin(), in_use.end()) {}

  absl::StatusOr<std::vector<std::string>> Run() {
    absl::Status status = RemoveAll("uploads", "");
    if (status.ok()) status = RemoveAll("cache", ".tmp");  // whole token caches are used again
    if (status.ok()) status = Sweep("datasets");
    if (status.ok()) status = Sweep("adapters");
    if (status.ok()) status = SweepCheckpoints();
    if (!status.ok()) return status;
    absl::StatusOr<std::vector<std::string>> lost = files_.List(data_dir_.Full("lost"));
    if (!lost.ok()) return lost.status();
    if (!lost->empty()) {
      notes_.push_back(absl::StrCat(data_dir_.Full("lost"), " holds ", lost->size(),
                                    " files and folders that no record names: look whether they "
                                    "are wanted, and remove them"));
    }
    return std::move(notes_);
  }

 private:
  absl::Status RemoveAll(const std::string& folder, const std::string& suffix) {
    auto names = files_.List(data_dir_.Full(folder));
    if (!names.ok()) return names.status();
    for (const std::string& name : *names) {
      if (!name.ends_with(suffix)) continue;
      const std::string path = data_dir_.Full(storage::JoinPath(folder, name));
      if (absl::Status status = storage::RemoveTree(files_, path); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status SweepCheckpoints() {
    auto jobs = files_.List(data_dir_.Full("checkpoints"));
    if (!jobs.ok()) return jobs.status();
    for (const std::string& job : *jobs) {
      const std::string folder = storage::JoinPath("checkpoints", job);
      if (absl::Status status = Sweep(folder); !status.ok()) return status;
      auto left = files_.List(data_dir_.Full(folder));
      if (!left.ok()) return left.status();
      if (!left->empty()) continue;
      if (absl::Status status = files_.Remove(data_dir_.Full(folder)); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  absl::Status Sweep(const std::string& folder) {
    auto names = files_.List(data_dir_.Full(folder));
    if (!names.ok()) return names.status();
    bool moved = false;
    for (const std::string& name : *names) {
      const std::string path = storage::JoinPath(folder, name);
      if (keep_.contains(path)) continue;
      if (!IsWhole(path)) {
        absl::Status status = storage::RemoveTree(files_, data_dir_.Full(path));
        if (!status.ok()) return status;
        continue;
      }
      if (absl::Status status = MoveToLost(path); !status.ok()) return status;
      moved = true;
    }
    if (!moved) return absl::OkStatus();
    if (absl::Status status = files_.SyncDirectory(data_dir_.Full("lost")); !status.ok()) {
      return status;
    }
    return files_.SyncDirectory(data_dir_.Full(folder));
  }

  // What was being written, or being removed (its first file is gone first), is not.
  bool IsWhole(const std::string& path) {
    if (path.ends_with(".tmp")) return false;
    const std::string full = data_dir_.Full(path);
    if (!files_.IsDirectory(full)) return true;
    const auto has = [&](const char* file) { return files_.Exists(storage::JoinPath(full, file)); };
    return has("adapter_config.json") &&
           (!path.starts_with("checkpoints/") || has(storage::kManifestFile));
  }

  absl::Status MoveToLost(const std::string& path) {
    const std::string name = absl::StrReplaceAll(path, {{"/", "-"}});
    std::string to = data_dir_.Full(storage::JoinPath("lost", name));
    for (int i = 2; files_.Exists(to); ++i) {
      to = data_dir_.Full(absl::StrCat("lost/", name, "-", i));
    }
    if (absl::Status status = files_.Rename(data_dir_.Full(path), to); !status.ok()) return status;
    notes_.push_back(
        absl::StrCat("no record names ", data_dir_.Full(path), ": it was moved to ", to));
    return absl::OkStatus();
  }

  const DataDir& data_dir_;
  storage::Files& files_;
  const std::set<std::string> keep_;
  std::vector<std::string> notes_;
};

}  // namespace

absl::StatusOr<std::vector<std::string>> ClearLeftovers(const DataDir& data_dir,
                                                        storage::Files& files,
                                                        const std::vector<std::string>& in_use) {
  return Sweeper(data_dir, files, in_use).Run();
}

}  // namespace lorad::server
