#include "server/store/startup.h"

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "server/core/events/kept.h"
#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "server/core/rules/job_states.h"
#include "server/errors/errors.h"

namespace lorad::server {
namespace {

constexpr const char* kFolders[] = {"uploads",     "datasets", "adapters",
                                    "checkpoints", "cache",    "lost"};
constexpr int64_t kAll = std::numeric_limits<int64_t>::max();

absl::Status Corrupt(std::string_view kind, std::string_view key) {
  return StoreCorrupt(absl::StrCat(std::string(kind), " '", std::string(key), "'"));
}

absl::Status ReadKind(storage::JobStore& store, const char* kind,
                      std::vector<std::pair<std::string, std::string>>* records) {
  return store.ScanRecords(kind, [&](std::string_view key, std::string_view value) {
    records->emplace_back(key, value);
    return absl::OkStatus();
  });
}

// And the newest revision of a record.
absl::Status ReadLiveMetrics(storage::JobStore& store, StoredState* state) {
  records::JobRecord record;  // one for all: its strings keep their room
  for (const auto& [name, bytes] : state->jobs) {
    if (!record.ParseFromString(bytes)) return Corrupt(kJobKind, name);
    state->last_revision = std::max(state->last_revision, record.job().revision());
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

absl::Status ReadNumber(storage::JobStore& store, const char* key, int64_t* number) {
  auto text = store.GetRecord(kMetaKind, key);
  if (!text.ok()) return text.status();
  if (*text && !absl::SimpleAtoi(**text, number)) return Corrupt(kMetaKind, key);
  return absl::OkStatus();
}

// The newest revision is that of a job's record, of its progress, or of a change, as that a job was
// deleted; or it is trimmed.
absl::Status ReadRevisions(storage::JobStore& store, StoredState* state) {
  absl::Status status =
      store.ScanRecords(kProgressKind, [&](std::string_view key, std::string_view value) {
        v1::Job progress;
        if (!progress.ParseFromArray(value.data(), static_cast<int>(value.size()))) {
          return Corrupt(kProgressKind, key);
        }
        state->progress.emplace(key, value);
        state->last_revision = std::max(state->last_revision, progress.revision());
        return absl::OkStatus();
      });
  if (!status.ok()) return status;
  auto oldest = store.ReadSeries(kRevisionSeries, "", 0, 1);
  if (!oldest.ok()) return oldest.status();
  // Older versions did not say how far they had trimmed.
  if (!oldest->empty()) state->trimmed_revision = oldest->front().number - 1;
  status = ReadNumber(store, kTrimmedKey, &state->trimmed_revision);
  if (!status.ok()) return status;
  state->last_revision = std::max(state->last_revision, state->trimmed_revision);
  constexpr int64_t kPage = 1000;
  for (;;) {
    auto page = store.ReadSeries(kRevisionSeries, "", state->last_revision, kPage);
    if (!page.ok()) return page.status();
    if (page->empty()) return absl::OkStatus();
    state->last_revision = page->back().number;
  }
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
  // Its log alone is nothing: SQLite would begin a new one over it.
  const absl::StatusOr<uint64_t> bytes = files.Size(data_dir.Full("lorad.sqlite"));
  if (bytes.ok() && *bytes > 0) return absl::OkStatus();
  if (!bytes.ok() && !absl::IsNotFound(bytes.status())) return bytes.status();
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

absl::StatusOr<StoredState> ReadStore(storage::JobStore& store) {
  StoredState state;
  for (const auto& [kind, records] :
       {std::pair{kModelKind, &state.models}, std::pair{kDatasetKind, &state.datasets},
        std::pair{kAdapterKind, &state.adapters}, std::pair{kJobKind, &state.jobs},
        std::pair{kRowsKind, &state.rows}, std::pair{kRequestKind, &state.requests},
        std::pair{kWorkerKind, &state.workers}, std::pair{kFitKind, &state.fits},
        std::pair{kQuotaKind, &state.quotas}, std::pair{kGroupKind, &state.groups},
        std::pair{kWindowKind, &state.windows}}) {
    if (absl::Status status = ReadKind(store, kind, records); !status.ok()) return status;
  }
  if (absl::Status status = ReadLiveMetrics(store, &state); !status.ok()) return status;

  for (const auto& [key, number] :
       {std::pair{kEpochKey, &state.last_epoch}, std::pair{kStartsKey, &state.starts}}) {
    if (absl::Status status = ReadNumber(store, key, number); !status.ok()) return status;
  }
  auto identity = store.GetRecord(kMetaKind, kStoreKey);
  if (!identity.ok()) return identity.status();
  state.store = identity->value_or("");
  if (absl::Status status = ReadRevisions(store, &state); !status.ok()) return status;
  return state;
}

absl::StatusOr<std::string> Identify(storage::JobStore& store, uint64_t random) {
  std::string identity = absl::StrCat(absl::Hex(random, absl::kZeroPad16));
  absl::Status status = store.Apply({storage::PutRecord(kMetaKind, kStoreKey, identity)});
  if (!status.ok()) return status;
  return identity;
}

}  // namespace lorad::server
