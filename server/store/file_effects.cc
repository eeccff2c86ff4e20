#include "server/store/file_effects.h"

#include <string>
#include <utility>

#include "server/store/slot_contents.h"
#include "server/validation/adapter.h"
#include "storage/adapters/checkpoint.h"

namespace lorad::server {
namespace {

storage::PeftConfig ConfigOf(const WriteCheckpoint& effect) {
  storage::PeftConfig config = PeftConfigOf(effect.adapter);
  config.base_model = effect.base_model_path;
  return config;
}

}  // namespace

absl::Status Execute(const MoveUpload& effect, const DataDir& data_dir, storage::Files& files) {
  const std::string path = data_dir.Full(effect.path);
  absl::Status status = files.Rename(effect.upload, path);
  if (status.ok()) status = files.SyncDirectory(storage::ParentPath(path));
  if (!status.ok()) {
    // Neither may stay: nothing will name it.
    storage::RemoveTree(files, effect.upload).IgnoreError();
    storage::RemoveTree(files, path).IgnoreError();
  }
  return status;
}

absl::StatusOr<v1::Checkpoint> Execute(const WriteCheckpoint& effect, const DataDir& data_dir,
                                       storage::Files& files) {
  const std::string directory = data_dir.Full(effect.path);
  const std::string parent = storage::ParentPath(directory);
  const auto write = [&]() -> absl::StatusOr<storage::Checkpoint> {
    if (absl::Status status = files.MakeDirectory(parent); !status.ok()) return status;
    // Also where it is there already: an earlier attempt may have ended before this.
    if (absl::Status status = files.SyncDirectory(storage::ParentPath(parent)); !status.ok()) {
      return status;
    }
    const storage::CheckpointState expected{effect.job, effect.step, effect.numerics_id};
    // Written before and not recorded. Whole, it has the bits of the shards: a step has them once
    // and for all. If not, it was never announced.
    if (files.Exists(directory)) {
      auto there = storage::OpenCheckpoint(files, directory, /*verify=*/true);
      if (there.ok() && there->state == expected) {
        absl::Status status = files.SyncDirectory(parent);
        if (!status.ok()) return status;
        return there;
      }
      if (absl::Status status = storage::RemoveTree(files, directory); !status.ok()) return status;
    }
    return storage::CommitCheckpoint(files, effect.uploads, expected, ConfigOf(effect), directory);
  };
  absl::StatusOr<storage::Checkpoint> written = write();
  for (const std::string& upload : effect.uploads) {
    storage::RemoveTree(files, upload).IgnoreError();
  }
  if (!written.ok()) return written.status();
  v1::Checkpoint checkpoint;
  checkpoint.set_job(effect.job);
  checkpoint.set_step(effect.step);
  checkpoint.set_numerics_id(effect.numerics_id);
  for (const storage::ListedFile& file : written->files) {
    v1::CheckpointFile& entry = *checkpoint.add_files();
    entry.set_name(file.name);
    entry.set_size_bytes(static_cast<int64_t>(file.size_bytes));
    entry.set_sha256(file.sha256);
  }
  return checkpoint;
}

absl::Status Execute(const ReadContent& effect, const DataDir& data_dir, storage::Files& files) {
  const absl::StatusOr<SlotContent> content = ParseSlotContent(effect.content);
  if (!content.ok()) return content.status();
  const auto reader = OpenSlotContent(files, data_dir, *content, effect.job);
  if (!reader.ok()) return reader.status();
  for (;;) {
    const absl::StatusOr<std::string> piece = (*reader)->Next();
    if (!piece.ok() || piece->empty()) return piece.status();
  }
}

absl::Status Execute(const RemovePath& effect, const DataDir& data_dir, storage::Files& files) {
  const bool whole = effect.path.starts_with(data_dir.root() + "/");
  return storage::RemoveTree(files, whole ? effect.path : data_dir.Full(effect.path));
}

}  // namespace lorad::server
