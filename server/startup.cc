#include "server/startup.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "server/core/job_progress.h"
#include "server/core/job_states.h"
#include "server/core/store_kinds.h"
#include "server/errors/errors.h"
#include "storage/checkpoint.h"

namespace lorad::server {
namespace {

constexpr const char* kFolders[] = {"uploads",     "datasets", "adapters",
                                    "checkpoints", "cache",    "lost"};
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

absl::Status Corrupt(std::string_view kind, std::string_view key) {
  return Error(absl::StatusCode::kDataLoss, "STORE_CORRUPT",
               absl::StrCat("the stored ", std::string(kind), " '", std::string(key),
                            "' cannot be read; put a copy of the data directory in its place"));
}

absl::Status ReadKind(storage::JobStore& store, const char* kind,
                      std::vector<std::pair<std::string, std::string>>* records) {
  return store.ScanRecords(kind, [&](std::string_view key, std::string_view value) {
    records->emplace_back(key, value);
    return absl::OkStatus();
  });
}

absl::Status ReadLiveMetrics(storage::JobStore& store, StoredState* state) {
  records::JobRecord record;  // one for all: its strings keep their room
  for (const auto& [name, bytes] : state->jobs) {
    if (!record.ParseFromString(bytes)) return Corrupt(kJobKind, name);
    if (!IsLive(record.job().state())) continue;
    int64_t after = record.job().last_checkpoint_step();
    if (record.has_checkpoint_tokens()) {
      after = std::max(after, record.furthest_step() - kMetricRowsKept);
    }
    auto rows = store.ReadSeries(kMetricsSeries, name, after, kAll);
    if (!rows.ok()) return rows.status();
    for (const storage::Entry& entry : *rows) {
      v1::StepMetrics row;
      if (!row.ParseFromString(entry.value)) return Corrupt(kMetricsSeries, name);
      state->metrics.emplace_back(name, std::move(row));
    }
  }
  return absl::OkStatus();
}

// Every revision whole, as watchers get it. Where a job was not kept whole before its progress, the
// revision and all before it are gone.
absl::Status ReadRevisions(storage::JobStore& store, StoredState* state,
                           std::vector<RevisionLog::Revision>* revisions) {
  auto entries = store.ReadSeries(kRevisionSeries, "", 0, kAll);
  if (!entries.ok()) return entries.status();
  if (entries->empty()) return absl::OkStatus();
  state->oldest_revision = entries->front().number;
  state->last_revision = entries->back().number;
  std::map<std::string, v1::Job> jobs;
  for (storage::Entry& entry : *entries) {
    records::RevisionRecord record;
    if (!record.ParseFromString(entry.value)) return Corrupt(kRevisionSeries, "");
    const std::string name = record.job().name();
    if (!record.progress_only()) {
      jobs[name] = std::move(*record.mutable_job());
      revisions->push_back({entry.number, name, std::move(entry.value)});
      continue;
    }
    const auto job = jobs.find(name);
    if (job == jobs.end()) {
      revisions->clear();
      continue;
    }
    SetProgress(std::move(*record.mutable_job()), &job->second);
    v1::WatchJobsResponse message;
    *message.mutable_job() = job->second;
    message.set_revision(entry.number);
    revisions->push_back({entry.number, name, message.SerializeAsString()});
  }
  return absl::OkStatus();
}
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

absl::Status MakeFolders(const DataDir& data_dir, storage::Files& files) {
  if (data_dir.root().empty()) {
    return Error(absl::StatusCode::kInvalidArgument, "DATA_DIR_INVALID",
                 "--data-dir must name a directory");
  }
  const absl::Status root = storage::MakeDirectoryDurably(files, data_dir.root());
  if (absl::IsNotFound(root) || absl::IsAlreadyExists(root) || absl::IsPermissionDenied(root)) {
    return Error(root.code(), "DATA_DIR_INVALID",
                 absl::StrCat(std::string(root.message()),
                              "; --data-dir must name a directory, or where one may be made"));
  }
  if (!root.ok()) return root;
  for (const char* folder : kFolders) {
    if (absl::Status status = files.MakeDirectory(data_dir.Full(folder)); !status.ok()) {
      return status;
    }
  }
  return files.SyncDirectory(data_dir.root());
}

absl::Status CheckStoreIsThere(const DataDir& data_dir, storage::Files& files) {
  for (const char* file : {"lorad.sqlite", "lorad.sqlite-wal"}) {
    const absl::StatusOr<uint64_t> bytes = files.Size(data_dir.Full(file));
    if (bytes.ok() && *bytes > 0) return absl::OkStatus();
    if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
  }
  for (const char* folder : {"datasets", "adapters", "checkpoints"}) {
    const auto names = files.List(data_dir.Full(folder));
    if (!names.ok()) return names.status();
    if (names->empty()) continue;
    return Error(absl::StatusCode::kDataLoss, "STORE_MISSING",
                 absl::StrCat(data_dir.Full("lorad.sqlite"), " is missing or empty, but ", folder,
                              "/ beside it is not: put the store back, or begin with another "
                              "--data-dir (nothing was removed)"));
  }
  return absl::OkStatus();
}

absl::StatusOr<StoredState> ReadStore(storage::JobStore& store,
                                      std::vector<RevisionLog::Revision>* revisions) {
  StoredState state;
  for (const auto& [kind, records] :
       {std::pair{kModelKind, &state.models}, std::pair{kDatasetKind, &state.datasets},
        std::pair{kAdapterKind, &state.adapters}, std::pair{kJobKind, &state.jobs},
        std::pair{kRowsKind, &state.rows}, std::pair{kRequestKind, &state.requests}}) {
    if (absl::Status status = ReadKind(store, kind, records); !status.ok()) return status;
  }
  if (absl::Status status = ReadLiveMetrics(store, &state); !status.ok()) return status;

  auto epoch = store.GetRecord(kMetaKind, kEpochKey);
  if (!epoch.ok()) return epoch.status();
  if (*epoch && !absl::SimpleAtoi(**epoch, &state.last_epoch)) {
    return Corrupt(kMetaKind, kEpochKey);
  }
  auto starts = store.GetRecord(kMetaKind, kStartsKey);
  if (!starts.ok()) return starts.status();
  if (*starts && !absl::SimpleAtoi(**starts, &state.starts)) {
    return Corrupt(kMetaKind, kStartsKey);
  }
  if (absl::Status status = ReadRevisions(store, &state, revisions); !status.ok()) return status;
  return state;
}

absl::StatusOr<std::vector<std::string>> ClearLeftovers(const DataDir& data_dir,
                                                        storage::Files& files,
                                                        const std::vector<std::string>& in_use) {
  return Sweeper(data_dir, files, in_use).Run();
}

}  // namespace lorad::server
