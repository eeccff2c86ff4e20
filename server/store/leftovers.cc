#include "server/store/leftovers.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "storage/adapters/checkpoint.h"

namespace lorad::server {

Leftovers::Leftovers(const DataDir& data_dir, storage::Files& files,
                     std::vector<std::string> in_use, std::vector<std::string> settled)
    : data_dir_(data_dir), files_(files), in_use_(std::move(in_use)), settled_(std::move(settled)) {
  std::ranges::sort(in_use_);
  std::ranges::sort(settled_);
}

absl::StatusOr<std::vector<std::string>> Leftovers::ClearUnsettled() {
  absl::Status status = RemoveAll("uploads", "");
  if (status.ok()) status = RemoveAll("cache", ".tmp");  // whole token caches are used again
  if (status.ok()) status = Sweep("datasets").status();
  if (status.ok()) status = Sweep("adapters").status();
  if (status.ok()) status = SweepCheckpoints();
  if (!status.ok()) return status;
  absl::StatusOr<std::vector<std::string>> lost = files_.List(data_dir_.Full("lost"));
  if (!lost.ok()) return lost.status();
  if (!lost->empty()) {
    notes_.push_back(absl::StrCat(data_dir_.Full("lost"), " holds ", lost->size(),
                                  " files and folders that no record names: look whether they are "
                                  "wanted, and remove them"));
  }
  return TakeNotes(status);
}

absl::StatusOr<std::vector<std::string>> Leftovers::ClearSettled(size_t folders_max) {
  absl::Status status;
  for (; folders_max > 0 && !settled_.empty() && status.ok(); --folders_max) {
    status = SweepJob(settled_.back());
    if (absl::IsNotFound(status)) status = absl::OkStatus();  // the job was deleted
    settled_.pop_back();
  }
  return TakeNotes(status);
}

absl::StatusOr<std::vector<std::string>> Leftovers::TakeNotes(const absl::Status& status) {
  if (!status.ok()) return status;
  return std::exchange(notes_, {});
}

absl::Status Leftovers::RemoveAll(const std::string& folder, const std::string& suffix) {
  auto names = files_.List(data_dir_.Full(folder));
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!name.ends_with(suffix)) continue;
    const std::string path = data_dir_.Full(storage::JoinPath(folder, name));
    if (absl::Status status = storage::RemoveTree(files_, path); !status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status Leftovers::SweepCheckpoints() {
  auto jobs = files_.List(data_dir_.Full("checkpoints"));
  if (!jobs.ok()) return jobs.status();
  for (const std::string& job : *jobs) {
    const std::string folder = storage::JoinPath("checkpoints", job);
    const std::string full = data_dir_.Full(folder);
    if (std::ranges::binary_search(settled_, folder)) continue;
    absl::Status status;
    if (files_.IsDirectory(full) && !files_.IsLink(full)) {
      status = SweepJob(folder);
    } else if (!HoldsUsed(folder)) {
      status = MoveToLost(folder);
      if (status.ok()) status = files_.SyncDirectory(data_dir_.Full("lost"));
      if (status.ok()) status = files_.SyncDirectory(data_dir_.Full("checkpoints"));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

// A record names something below it.
bool Leftovers::HoldsUsed(const std::string& folder) {
  const auto first = std::ranges::lower_bound(in_use_, folder + "/");
  return first != in_use_.end() && first->starts_with(folder + "/");
}

absl::Status Leftovers::SweepJob(const std::string& folder) {
  if (files_.IsLink(data_dir_.Full(folder))) return absl::OkStatus();
  absl::StatusOr<size_t> left = Sweep(folder);
  if (!left.ok()) return left.status();
  // Without its folder a checkpoint that is gone would be on a disk that is away (shard_reader.h).
  const bool stays = *left > 0 || HoldsUsed(folder);
  return stays ? absl::OkStatus() : files_.Remove(data_dir_.Full(folder));
}

// How many entries are left in it.
absl::StatusOr<size_t> Leftovers::Sweep(const std::string& folder) {
  auto names = files_.List(data_dir_.Full(folder));
  if (!names.ok()) return names.status();
  size_t left = 0;
  bool moved = false;
  for (const std::string& name : *names) {
    const std::string path = storage::JoinPath(folder, name);
    if (std::ranges::binary_search(in_use_, path)) {
      left++;
      continue;
    }
    if (!IsWhole(path)) {
      absl::Status status = storage::RemoveTree(files_, data_dir_.Full(path));
      if (!status.ok()) return status;
      continue;
    }
    if (absl::Status status = MoveToLost(path); !status.ok()) return status;
    moved = true;
  }
  if (!moved) return left;
  absl::Status status = files_.SyncDirectory(data_dir_.Full("lost"));
  if (status.ok()) status = files_.SyncDirectory(data_dir_.Full(folder));
  if (!status.ok()) return status;
  return left;
}

// A directory that was being written, or being removed (its first file is gone first), is not
// whole.
bool Leftovers::IsWhole(const std::string& path) {
  if (path.ends_with(".tmp")) return false;
  const std::string full = data_dir_.Full(path);
  if (!files_.IsDirectory(full) || files_.IsLink(full)) return true;
  const auto has = [&](const char* file) { return files_.Exists(storage::JoinPath(full, file)); };
  return has("adapter_config.json") &&
         (!path.starts_with("checkpoints/") || has(storage::kManifestFile));
}

absl::Status Leftovers::MoveToLost(const std::string& path) {
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

}  // namespace lorad::server
