// Every durable operation of the coordinator on a disk that loses power: what was acknowledged is
// there, whole, and what was not is there whole or not at all. And every sync proves necessary:
// left out, it is noticed.
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/calls/upload.h"
#include "server/feed/token_cache.h"
#include "server/store/file_effects.h"
#include "server/store/startup.h"
#include "storage/adapters/checkpoint.h"
#include "storage/files/sha256.h"
#include "storage/job_store.h"
#include "storage/models/model_directory.h"
#include "tests/server/feed/house.h"
#include "tests/sim/disk/sim_disk.h"
#include "tests/sim/disk/sim_files.h"
#include "tests/sim/disk/sim_vfs.h"
#include "tests/storage/safetensors_bytes.h"

namespace lorad::sim {
namespace {

using storage::JobStore;

constexpr uint64_t kSeeds = 20;           // at every point
constexpr uint64_t kSeedsOfMutant = 400;  // until one of them notices

struct Operation {
  std::string name;
  std::function<void(SimDisk&)> prepare;  // what is there before, durably
  // Counts what was acknowledged. Ends at the first error.
  std::function<int(SimDisk&)> run;
  // After a power loss: what is wrong; empty where nothing is.
  std::function<std::string(SimDisk&, int acknowledged)> check;
};

// ---- files ----

constexpr char kOld[] = "what was there before";

std::string Long(char letter) { return std::string(3000, letter); }

std::string CheckContent(SimDisk& disk, const std::string& path, const std::string& content,
                         const std::string& otherwise, bool acknowledged) {
  const auto found = SimFiles(disk).ReadAll(path, 1 << 20);
  const std::string is = found.ok() ? *found : "absent";
  if (is == content || (!acknowledged && is == otherwise)) return "";
  return absl::StrCat(path, " holds ", is.size(), " bytes that are not its content");
}

Operation OfAtomicWrite() {
  return {"AtomicWrite",
          [](SimDisk& disk) {
            SimFiles files(disk);
            REQUIRE(storage::AtomicWrite(files, "/f", kOld).ok());
          },
          [](SimDisk& disk) {
            SimFiles files(disk);
            return storage::AtomicWrite(files, "/f", Long('n')).ok() ? 1 : 0;
          },
          [](SimDisk& disk, int acknowledged) {
            return CheckContent(disk, "/f", Long('n'), kOld, acknowledged > 0);
          }};
}

Operation OfWriteSynced() {
  return {"WriteSynced in a directory that is renamed into place", [](SimDisk&) {},
          [](SimDisk& disk) {
            SimFiles files(disk);
            const bool done = files.MakeDirectory("/d.tmp").ok() &&
                              storage::WriteSynced(files, "/d.tmp/f", Long('n')).ok() &&
                              files.SyncDirectory("/d.tmp").ok() &&
                              files.Rename("/d.tmp", "/d").ok() && files.SyncDirectory("/").ok();
            return done ? 1 : 0;
          },
          [](SimDisk& disk, int acknowledged) -> std::string {
            if (acknowledged == 0 && !SimFiles(disk).Exists("/d")) return "";
            return CheckContent(disk, "/d/f", Long('n'), "", true);
          }};
}

// Where an earlier attempt ended before its sync.
Operation OfMakeDirectory() {
  return {"MakeDirectoryDurably", [](SimDisk& disk) { REQUIRE(disk.MakeDirectory("/a") == 0); },
          [](SimDisk& disk) {
            SimFiles files(disk);
            return storage::MakeDirectoryDurably(files, "/a/b/c").ok() ? 1 : 0;
          },
          [](SimDisk& disk, int acknowledged) {
            return acknowledged == 0 || SimFiles(disk).IsDirectory("/a/b/c") ? "" : "it is gone";
          }};
}

void MakeFolders(SimDisk& disk) {
  SimFiles files(disk);
  REQUIRE(server::MakeFolders(server::DataDir("/data"), files).ok());
}

// An upload as a service writes it, moved to its place as the driver does it.
Operation OfMoveUpload() {
  const server::MoveUpload move{1, "/data/uploads/u", "datasets/d.jsonl"};
  return {"MoveUpload", MakeFolders,
          [move](SimDisk& disk) {
            SimFiles files(disk);
            auto upload = server::Upload::Create(files, move.upload, "dataset", 1 << 20);
            if (!upload.ok() || !upload->Append(Long('u')).ok() || !upload->Finish(0, "").ok()) {
              return 0;
            }
            upload->Release();
            return server::Execute(move, server::DataDir("/data"), files).ok() ? 1 : 0;
          },
          [](SimDisk& disk, int acknowledged) {
            return CheckContent(disk, "/data/datasets/d.jsonl", Long('u'), "absent",
                                acknowledged > 0);
          }};
}

// ---- checkpoints ----

constexpr char kJob[] = "job-1";

std::string ShardBytes(int64_t step) {
  std::vector<storage::TensorEntry> entries;
  for (const char matrix : {'A', 'B'}) {
    const std::vector<int64_t> shape =
        matrix == 'A' ? std::vector<int64_t>{4, 64} : std::vector<int64_t>{64, 4};
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      entries.push_back({absl::StrCat(storage::PeftKey("m.layers.0.q_proj", matrix), suffix),
                         storage::TensorType::kF32, shape});
    }
  }
  return storage::SafetensorsOf(entries, storage::ShardMetadata({kJob, step, "sim"}));
}

server::WriteCheckpoint WriteOf(int64_t step) {
  server::WriteCheckpoint write;
  write.uploads = {absl::StrCat("/data/uploads/shard-", step)};
  write.path = absl::StrCat("checkpoints/", kJob, "/", step);
  write.job = kJob;
  write.step = step;
  write.numerics_id = "sim";
  write.adapter.set_rank(4);
  write.adapter.set_alpha(8);
  write.adapter.add_target_modules("q_proj");
  return write;
}

// `retried`: an earlier attempt ended when it had made the job's folder and not synced it.
Operation OfWriteCheckpoint(bool retried) {
  return {retried ? "WriteCheckpoint, retried" : "WriteCheckpoint",
          [retried](SimDisk& disk) {
            MakeFolders(disk);
            SimFiles files(disk);
            REQUIRE(storage::WriteSynced(files, WriteOf(1).uploads.front(), ShardBytes(1)).ok());
            disk.SyncAll();
            if (retried) REQUIRE(files.MakeDirectory("/data/checkpoints/job-1").ok());
          },
          [](SimDisk& disk) {
            SimFiles files(disk);
            return server::Execute(WriteOf(1), server::DataDir("/data"), files).ok() ? 1 : 0;
          },
          [](SimDisk& disk, int acknowledged) -> std::string {
            SimFiles files(disk);
            const std::string path = "/data/" + WriteOf(1).path;
            if (acknowledged == 0 && !files.Exists(path)) return "";
            return std::string(storage::OpenCheckpoint(files, path, true).status().message());
          }};
}

// ---- token caches ----

Operation OfTokenCache(const server::feed::House& house) {
  house.AddTokens("rows.jsonl", {30, 90, 20});
  auto directory = storage::ModelDirectory::Open(house.model());
  REQUIRE(directory.ok());
  auto model = storage::LoadTextModel(*directory);
  REQUIRE(model.ok());
  const std::string rows = house.directory.Read("rows.jsonl");
  const server::feed::TokenCacheKey key{storage::Sha256::Of(rows), "model", {.max_length = 100}};
  return {"WriteTokenCache",
          [rows](SimDisk& disk) {
            SimFiles files(disk);
            REQUIRE(storage::WriteSynced(files, "/rows.jsonl", rows).ok());
            disk.SyncAll();
          },
          [key, model = std::make_shared<storage::TextModel>(*std::move(model))](SimDisk& disk) {
            SimFiles files(disk);
            const auto done =
                server::feed::WriteTokenCache(files, "/rows.jsonl", *model, key, "/cache");
            return done.ok() ? 1 : 0;
          },
          [key](SimDisk& disk, int acknowledged) -> std::string {
            SimFiles files(disk);
            const auto cache = server::feed::TokenCache::Open("/cache", key, files);
            if (cache.ok()) return (*cache)->rows() == 3 ? "" : "it has lost rows";
            if (acknowledged == 0 && absl::IsNotFound(cache.status())) return "";
            return std::string(cache.status().message());
          }};
}

// ---- the store ----

// Turn i puts record "i" and entry i, and sets the counter to i: any prefix is recognisable.
std::vector<storage::Mutation> Turn(int i) {
  return {storage::PutRecord("turn", std::to_string(1000 + i), std::string(700, 'a' + i % 26)),
          storage::PutEntry("turns", "x", i, std::string(300, 'b')),
          storage::PutRecord("count", "n", std::to_string(i))};
}

absl::StatusOr<int> WholeTurns(JobStore& store) {
  const auto count = store.GetRecord("count", "n");
  if (!count.ok()) return count.status();
  const int turns = *count ? std::stoi(**count) : 0;
  int records = 0;
  const absl::Status status = store.ScanRecords("turn", [&](std::string_view, std::string_view) {
    records++;
    return absl::OkStatus();
  });
  if (!status.ok()) return status;
  const auto entries = store.ReadSeries("turns", "x", 0, 1 << 20);
  if (!entries.ok()) return entries.status();
  if (records != turns || static_cast<int>(entries->size()) != turns) {
    return absl::DataLossError("a turn is there in part");
  }
  return turns;
}

std::string CheckTurns(SimDisk& disk, int acknowledged) {
  SimVfs vfs(disk);
  const auto store = JobStore::Open("/data", {}, vfs.name());
  if (!store.ok()) return std::string(store.status().message());
  const absl::StatusOr<int> turns = WholeTurns(**store);
  if (!turns.ok()) return std::string(turns.status().message());
  if (*turns == acknowledged || *turns == acknowledged + 1) return "";
  return absl::StrCat(*turns, " turns are there, ", acknowledged, " were acknowledged");
}

// As the driver opens a new store.
int OpenAndApply(SimDisk& disk, const std::string& directory, int turns) {
  SimVfs vfs(disk);
  const auto store = JobStore::Open(directory, {}, vfs.name());
  if (!store.ok() || !SimFiles(disk).SyncDirectory(directory).ok()) return 0;
  for (int i = 1; i <= turns; ++i) {
    if (!(*store)->Apply(Turn(i)).ok()) return i - 1;
  }
  return turns;
}

Operation OfApply() {
  return {"JobStore::Apply", MakeFolders,
          [](SimDisk& disk) { return OpenAndApply(disk, "/data", 4); }, CheckTurns};
}

// So many turns that the log is emptied into the database now and then.
Operation OfManyTurns() {
  return {"JobStore::Apply, with its log emptied", MakeFolders,
          [](SimDisk& disk) { return OpenAndApply(disk, "/data", 400); }, CheckTurns};
}

// A data directory from nothing to its first turn.
Operation OfStartUp() {
  return {"start-up", [](SimDisk&) {},
          [](SimDisk& disk) {
            SimFiles files(disk);
            const server::DataDir data_dir("/srv/lorad/data");
            if (!server::MakeFolders(data_dir, files).ok()) return 0;
            if (!server::CheckStoreIsThere(data_dir, files).ok()) return 0;
            return OpenAndApply(disk, data_dir.root(), 1);
          },
          [](SimDisk& disk, int acknowledged) -> std::string {
            SimFiles files(disk);
            const server::DataDir data_dir("/srv/lorad/data");
            if (acknowledged == 0) {
              const absl::Status again = server::MakeFolders(data_dir, files);
              if (!again.ok()) return std::string(again.message());
            }
            for (const char* folder : {"uploads", "datasets", "adapters", "checkpoints", "cache"}) {
              if (!files.IsDirectory(data_dir.Full(folder))) return folder;
            }
            SimVfs vfs(disk);
            const auto store = JobStore::Open(data_dir.root(), {}, vfs.name());
            if (!store.ok()) return std::string(store.status().message());
            const absl::StatusOr<int> turns = WholeTurns(**store);
            if (!turns.ok()) return std::string(turns.status().message());
            return *turns >= acknowledged ? "" : "the first turn is gone";
          }};
}

// ---- running them ----

struct Course {
  int64_t stop_after = -1;  // effects; -1: it runs to its end
  SimDisk::Skip skip = nullptr;
  SimDisk::Fault fault = nullptr;
};

struct Outcome {
  int acknowledged = 0;
  int64_t effects = 0, syncs = 0;
  std::string wrong;
};

Outcome Run(const Operation& operation, uint64_t seed, const Course& course) {
  SimDisk disk(seed);
  operation.prepare(disk);
  const int64_t effects = disk.effects(), syncs = disk.syncs();
  if (course.stop_after >= 0) disk.StopAfter(course.stop_after);
  if (course.skip) {
    disk.set_skip([&course, syncs](int64_t sync, const std::string& path) {
      return course.skip(sync - syncs, path);
    });
  }
  disk.set_fault(course.fault);
  Outcome outcome;
  outcome.acknowledged = operation.run(disk);
  outcome.effects = disk.effects() - effects;
  outcome.syncs = disk.syncs() - syncs;
  disk.set_skip(nullptr);
  disk.set_fault(nullptr);
  disk.PowerLoss();
  outcome.wrong = operation.check(disk, outcome.acknowledged);
  return outcome;
}

// Some seed notices.
bool IsNoticed(const Operation& operation, const SimDisk::Skip& skip) {
  for (uint64_t seed = 1; seed <= kSeedsOfMutant; ++seed) {
    if (!Run(operation, seed, {.skip = skip}).wrong.empty()) return true;
  }
  return false;
}

std::vector<Operation> OnFiles(const server::feed::House& house) {
  return {OfAtomicWrite(),          OfWriteSynced(),         OfMakeDirectory(),  OfMoveUpload(),
          OfWriteCheckpoint(false), OfWriteCheckpoint(true), OfTokenCache(house)};
}

TEST_CASE("what is acknowledged survives a power loss at any point") {
  const server::feed::House house;
  std::vector<Operation> operations = OnFiles(house);
  operations.push_back(OfApply());
  operations.push_back(OfStartUp());
  for (const Operation& operation : operations) {
    const Outcome whole = Run(operation, 1, {});
    std::cout << operation.name << ": " << whole.effects << " effects, " << whole.syncs
              << " of them syncs\n";
    REQUIRE(whole.acknowledged > 0);
    REQUIRE(whole.effects >= 4);
    for (int64_t stop = 0; stop <= whole.effects; ++stop) {
      for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
        const Outcome outcome = Run(operation, seed, {.stop_after = stop});
        INFO(operation.name << ", stopped after " << stop << " effects, seed " << seed << ": "
                            << outcome.wrong);
        REQUIRE(outcome.wrong.empty());
      }
    }
  }
}

TEST_CASE("a store whose log is emptied now and then survives a power loss at any point") {
  const Operation operation = OfManyTurns();
  const Outcome whole = Run(operation, 1, {});
  REQUIRE(whole.acknowledged == 400);
  std::mt19937_64 random(1);
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const int64_t stop = static_cast<int64_t>(random() % whole.effects);
    const Outcome outcome = Run(operation, seed, {.stop_after = stop});
    INFO("stopped after " << stop << " effects, seed " << seed << ": " << outcome.wrong);
    REQUIRE(outcome.wrong.empty());
  }
}

TEST_CASE("each sync of a file or a directory is necessary") {
  const server::feed::House house;
  for (const Operation& operation : OnFiles(house)) {
    const Outcome whole = Run(operation, 1, {});
    for (int64_t left_out = 1; left_out <= whole.syncs; ++left_out) {
      INFO(operation.name << ", without sync " << left_out << " of " << whole.syncs);
      CHECK(IsNoticed(operation,
                      [left_out](int64_t sync, const std::string&) { return sync == left_out; }));
    }
  }
}

TEST_CASE("the store's log, its database and its directory each need their syncs") {
  const auto of = [](const std::string& ending) {
    return [ending](int64_t, const std::string& path) { return path.ends_with(ending); };
  };
  CHECK(IsNoticed(OfApply(), of("-wal")));
  CHECK(IsNoticed(OfManyTurns(), of(".sqlite")));
  CHECK(IsNoticed(OfStartUp(), of("/data")));
  CHECK(IsNoticed(OfStartUp(), of("/lorad")));
  CHECK(IsNoticed(OfStartUp(), of("/srv")));
}

TEST_CASE("a sync that fails is never followed by an acknowledgement of what it left out") {
  const server::feed::House house;
  std::vector<Operation> operations = OnFiles(house);
  operations.push_back(OfApply());
  operations.push_back(OfManyTurns());
  operations.push_back(OfStartUp());
  for (const Operation& operation : operations) {
    const Outcome whole = Run(operation, 1, {});
    for (int64_t failing = 1; failing <= whole.syncs; ++failing) {
      for (uint64_t seed = 1; seed <= 10; ++seed) {
        int64_t syncs = 0;
        const Outcome outcome =
            Run(operation, seed, {.fault = [&](SimDisk::Call call, const std::string&) {
                  const bool sync =
                      call == SimDisk::Call::kSync || call == SimDisk::Call::kSyncDirectory;
                  return sync && ++syncs == failing ? EIO : 0;
                }});
        INFO(operation.name << ", sync " << failing << " fails, seed " << seed << ": "
                            << outcome.wrong);
        REQUIRE(outcome.wrong.empty());
      }
      if (whole.syncs > 50) failing += 12;
    }
  }
}

}  // namespace
}  // namespace lorad::sim
