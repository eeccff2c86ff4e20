#include "server/store/startup.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/kept.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/core/jobs/job_progress.h"
#include "server/core/jobs/job_states.h"
#include "server/errors/errors.h"

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
    const std::string path = data_dir.Full(folder);
    if (files.IsLink(path) || (files.Exists(path) && !files.IsDirectory(path))) {
      return Error(absl::StatusCode::kFailedPrecondition, "DATA_DIR_INVALID",
                   absl::StrCat(path,
                                " must be a directory, and no link to one: what lies in it is "
                                "lorad's to remove. Take it away; to have it on another disk, "
                                "mount that one there"));
    }
    if (absl::Status status = files.MakeDirectory(path); !status.ok()) return status;
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
        std::pair{kRowsKind, &state.rows}, std::pair{kRequestKind, &state.requests},
        std::pair{kWorkerKind, &state.workers}}) {
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

}  // namespace lorad::server
