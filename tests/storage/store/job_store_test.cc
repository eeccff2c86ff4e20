#include "storage/job_store.h"

#include <sqlite3.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>

#include "storage/files/directory_lock.h"

namespace lorad::storage {
namespace {

namespace fs = std::filesystem;

class TempDir {
 public:
  TempDir() {
    std::string pattern = (fs::temp_directory_path() / "lorad_store_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() { fs::remove_all(path_); }
  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::unique_ptr<JobStore> OpenOk(const std::string& directory, StoreHooks hooks = {}) {
  auto store = JobStore::Open(directory, std::move(hooks));
  INFO(store.status().ToString());
  REQUIRE(store.ok());
  return std::move(*store);
}

std::string Reason(const absl::Status& status) {
  auto payload = status.GetPayload("lorad/reason");
  return payload ? std::string(*payload) : "";
}

std::vector<std::string> Keys(JobStore& store, const std::string& kind) {
  std::vector<std::string> keys;
  REQUIRE(store
              .ScanRecords(kind,
                           [&](std::string_view key, std::string_view) {
                             keys.emplace_back(key);
                             return absl::OkStatus();
                           })
              .ok());
  return keys;
}

std::vector<int64_t> Numbers(JobStore& store, const std::string& kind, const std::string& key,
                             int64_t after = -1, int64_t limit = 100) {
  auto entries = store.ReadSeries(kind, key, after, limit);
  REQUIRE(entries.ok());
  std::vector<int64_t> numbers;
  for (const Entry& entry : *entries) numbers.push_back(entry.number);
  return numbers;
}

void ExecuteSql(const std::string& path, const std::string& sql) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  REQUIRE(sqlite3_exec(database, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
  sqlite3_close(database);
}

TEST_CASE("records and series keep what was put, across a new start") {
  TempDir dir;
  const std::string bytes("\0\xff\n\0", 4);
  {
    auto store = OpenOk(dir.path());
    REQUIRE(store
                ->Apply({PutRecord("job", "b", bytes), PutRecord("job", "a", "1"),
                         PutRecord("model", "a", ""), PutEntry("metric", "a", 2, "two"),
                         PutEntry("metric", "a", 1, "one"), PutEntry("metric", "b", 1, "other")})
                .ok());
    REQUIRE(store->Apply({PutRecord("job", "a", "2")}).ok());
  }
  auto store = OpenOk(dir.path());
  CHECK(*store->GetRecord("job", "b") == bytes);
  CHECK(*store->GetRecord("job", "a") == "2");
  CHECK(*store->GetRecord("model", "a") == "");
  CHECK(*store->GetRecord("model", "b") == std::nullopt);
  CHECK(Keys(*store, "job") == std::vector<std::string>{"a", "b"});
  CHECK(Numbers(*store, "metric", "a") == std::vector<int64_t>{1, 2});
}

TEST_CASE("every kind of mutation") {
  TempDir dir;
  auto store = OpenOk(dir.path());
  std::vector<Mutation> puts;
  for (int i = 1; i <= 6; ++i) puts.push_back(PutEntry("s", "x", i, "v"));
  puts.push_back(PutEntry("s", "y", 1, "v"));
  REQUIRE(store->Apply(puts).ok());
  CHECK(Numbers(*store, "s", "x", 2, 3) == std::vector<int64_t>{3, 4, 5});
  REQUIRE(store->Apply({DeleteEntry("s", "x", 5)}).ok());
  CHECK(Numbers(*store, "s", "x") == std::vector<int64_t>{1, 2, 3, 4, 6});
  REQUIRE(store->Apply({TrimSeries("s", "x", 3)}).ok());
  CHECK(Numbers(*store, "s", "x") == std::vector<int64_t>{4, 6});
  REQUIRE(store->Apply({DeleteSeries("s", "x")}).ok());
  CHECK(Numbers(*store, "s", "x").empty());
  CHECK(Numbers(*store, "s", "y") == std::vector<int64_t>{1});
  REQUIRE(store->Apply({PutRecord("r", "k", "v")}).ok());
  REQUIRE(store->Apply({DeleteRecord("r", "k")}).ok());
  CHECK(Keys(*store, "r").empty());
}

TEST_CASE("a visitor's error ends the scan and comes back") {
  TempDir dir;
  auto store = OpenOk(dir.path());
  REQUIRE(store->Apply({PutRecord("r", "a", ""), PutRecord("r", "b", "")}).ok());
  int visits = 0;
  const absl::Status status = store->ScanRecords("r", [&](std::string_view, std::string_view) {
    ++visits;
    return absl::DataLossError("bad");
  });
  CHECK(absl::IsDataLoss(status));
  CHECK(visits == 1);
  CHECK(store->Apply({PutRecord("r", "c", "")}).ok());
}

TEST_CASE("hooks stand around every turn") {
  TempDir dir;
  std::string seen;
  auto store = OpenOk(
      dir.path(), {.before_commit = [&] { seen += "b"; }, .after_commit = [&] { seen += "a"; }});
  CHECK(seen.empty());
  REQUIRE(store->Apply({PutRecord("r", "a", "")}).ok());
  REQUIRE(store->Apply({}).ok());
  REQUIRE(store->Apply({PutRecord("r", "b", "")}).ok());
  CHECK(seen == "baba");
}

TEST_CASE(
    "schema: an empty file is brought up to date, a later one is refused, a strange one too") {
  TempDir dir;
  const std::string path = dir.file("lorad.sqlite");
  SECTION("an empty file") {
    std::ofstream(path).close();
    auto store = OpenOk(dir.path());
    CHECK(store->Apply({PutRecord("r", "a", "")}).ok());
  }
  SECTION("of a later version") {
    OpenOk(dir.path()).reset();
    ExecuteSql(path, "PRAGMA user_version=1000");
    auto store = JobStore::Open(dir.path());
    CHECK(absl::IsFailedPrecondition(store.status()));
    CHECK(Reason(store.status()) == "STORE_TOO_NEW");
  }
  SECTION("another program's database") {
    ExecuteSql(path, "CREATE TABLE records (x); PRAGMA user_version=1");
    auto store = JobStore::Open(dir.path());
    CHECK(absl::IsDataLoss(store.status()));
    CHECK(Reason(store.status()) == "STORE_CORRUPT");
  }
  SECTION("another program's database that has no version") {
    ExecuteSql(path, "CREATE TABLE records (x)");
    CHECK(Reason(JobStore::Open(dir.path()).status()) == "STORE_CORRUPT");
  }
  SECTION("no database at all") {
    std::ofstream(path) << std::string(10000, 'x');
    auto store = JobStore::Open(dir.path());
    CHECK(absl::IsDataLoss(store.status()));
    CHECK(Reason(store.status()) == "STORE_CORRUPT");
  }
  SECTION("a directory that is not there") { CHECK_FALSE(JobStore::Open(dir.file("none")).ok()); }
}

TEST_CASE("version 1 is what the first release wrote") {
  TempDir dir;
  ExecuteSql(dir.file("lorad.sqlite"),
             "CREATE TABLE records (kind TEXT NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL,"
             "  PRIMARY KEY (kind, key)) WITHOUT ROWID;"
             "CREATE TABLE series (kind TEXT NOT NULL, key TEXT NOT NULL, number INTEGER NOT NULL,"
             "  value BLOB NOT NULL, PRIMARY KEY (kind, key, number)) WITHOUT ROWID;"
             "PRAGMA user_version=1; PRAGMA application_id=1282363972;"
             "INSERT INTO records VALUES ('job', 'a', x'0102');"
             "INSERT INTO series VALUES ('metric', 'a', 7, x'03');");
  auto store = OpenOk(dir.path());
  CHECK(*store->GetRecord("job", "a") == "\x01\x02");
  CHECK(Numbers(*store, "metric", "a") == std::vector<int64_t>{7});
}

int64_t CountEntries(const std::string& path, const std::string& table) {
  sqlite3* database = nullptr;
  REQUIRE(sqlite3_open(path.c_str(), &database) == SQLITE_OK);
  sqlite3_stmt* statement = nullptr;
  const std::string sql = "SELECT count(*) FROM " + table;
  REQUIRE(sqlite3_prepare_v2(database, sql.c_str(), -1, &statement, nullptr) == SQLITE_OK);
  REQUIRE(sqlite3_step(statement) == SQLITE_ROW);
  const int64_t count = sqlite3_column_int64(statement, 0);
  sqlite3_finalize(statement);
  sqlite3_close(database);
  return count;
}

TEST_CASE("a long series is gone at once, and removed in pieces, also across starts") {
  TempDir dir;
  const std::string path = dir.file("lorad.sqlite");
  constexpr int64_t kEntries = 5000;
  auto store = OpenOk(dir.path());
  std::vector<Mutation> puts;
  for (int64_t i = 0; i < kEntries; ++i) puts.push_back(PutEntry("m", "long", i, "x"));
  puts.push_back(PutEntry("m", "other", 1, "x"));
  REQUIRE(store->Apply(puts).ok());
  REQUIRE(store->Apply({DeleteSeries("m", "long"), DeleteSeries("m", "none")}).ok());
  CHECK(Numbers(*store, "m", "long").empty());
  store.reset();
  const int64_t left = CountEntries(path, "series");
  CHECK(left < kEntries);
  CHECK(left > 1000);  // not all at once
  SECTION("the transactions that follow remove the rest") {
    store = OpenOk(dir.path());
    CHECK(Numbers(*store, "m", "long").empty());
    for (int i = 0; i < 6; ++i) REQUIRE(store->Apply({PutRecord("r", "a", "")}).ok());
    CHECK(Numbers(*store, "m", "other") == std::vector<int64_t>{1});
    store.reset();
    CHECK(CountEntries(path, "series") == 1);
    CHECK(CountEntries(path, "dropped") == 0);
  }
  SECTION("one that starts over has its new entries alone") {
    store = OpenOk(dir.path());
    REQUIRE(store->Apply({PutEntry("m", "long", 7, "new")}).ok());
    CHECK(Numbers(*store, "m", "long") == std::vector<int64_t>{7});
    store.reset();
    CHECK(CountEntries(path, "series") == 2);
  }
}

// Turn i puts record "i" and entry i, and sets the counter to i: any prefix of turns is
// recognisable.
std::vector<Mutation> Turn(int i) {
  return {PutRecord("turn", std::to_string(1000 + i), std::string(700, 'a' + i % 26)),
          PutEntry("turns", "x", i, std::string(300, 'b')),
          PutRecord("count", "n", std::to_string(i))};
}

// The number of whole turns in the store; fails where it is not a prefix.
int WholeTurns(JobStore& store) {
  auto count = store.GetRecord("count", "n");
  REQUIRE(count.ok());
  const int turns = *count ? std::stoi(**count) : 0;
  CHECK(static_cast<int>(Keys(store, "turn").size()) == turns);
  CHECK(static_cast<int>(Numbers(store, "turns", "x").size()) == turns);
  return turns;
}

TEST_CASE("a log torn anywhere leaves a prefix of whole turns") {
  for (const unsigned seed : {1u, std::random_device{}()}) {
    std::cout << "job_store_test torn: seed " << seed << "\n";
    std::mt19937 random(seed);
    TempDir dir;
    TempDir copy;
    constexpr int kTurns = 30;
    auto store = OpenOk(dir.path());
    for (int i = 1; i <= kTurns; ++i) REQUIRE(store->Apply(Turn(i)).ok());
    const auto log_bytes = fs::file_size(dir.file("lorad.sqlite-wal"));
    for (int trial = 0; trial < 25; ++trial) {
      fs::copy(dir.path(), copy.path(),
               fs::copy_options::overwrite_existing | fs::copy_options::recursive);
      const auto cut = random() % (log_bytes + 1);
      fs::resize_file(copy.file("lorad.sqlite-wal"), cut);
      INFO("cut at " << cut << " of " << log_bytes);
      const int turns = WholeTurns(*OpenOk(copy.path()));
      if (cut == log_bytes) CHECK(turns == kTurns);
    }
  }
}

TEST_CASE("killed at a commit: before it the turn is gone, after it the turn is there") {
  for (const bool after : {false, true}) {
    TempDir dir;
    const pid_t child = fork();
    if (child == 0) {
      int commits = 0;
      auto die = [&] {
        if (++commits == 3) _exit(9);
      };
      StoreHooks hooks;
      (after ? hooks.after_commit : hooks.before_commit) = die;
      auto store = JobStore::Open(dir.path(), hooks);
      for (int i = 1; i <= 5; ++i) (void)(*store)->Apply(Turn(i));
      _exit(0);
    }
    int status = 0;
    waitpid(child, &status, 0);
    REQUIRE(WEXITSTATUS(status) == 9);
    CHECK(WholeTurns(*OpenOk(dir.path())) == (after ? 3 : 2));
  }
}

TEST_CASE("ten thousand records are read in a moment") {
  TempDir dir;
  auto store = OpenOk(dir.path());
  std::vector<Mutation> puts;
  for (int i = 0; i < 10'000; ++i) {
    puts.push_back(PutRecord("job", std::to_string(i), std::string(600, 'x')));
  }
  REQUIRE(store->Apply(puts).ok());
  // The best of some: other tests run on the same cores.
  auto fastest = std::chrono::steady_clock::duration::max();
  for (int attempt = 0; attempt < 5; ++attempt) {
    const auto start = std::chrono::steady_clock::now();
    CHECK(Keys(*store, "job").size() == 10'000);
    fastest = std::min(fastest, std::chrono::steady_clock::now() - start);
  }
  CHECK(fastest < std::chrono::milliseconds(500));
}

TEST_CASE(
    "a store that is moved away, removed or replaced under us takes nothing until it is back") {
  TempDir dir;
  auto store = OpenOk(dir.path());
  REQUIRE(store->Apply({PutRecord("job", "a", "1")}).ok());
  const auto refused = [&] {
    const absl::Status status = store->Apply({PutRecord("job", "lost", "1")});
    return absl::IsUnavailable(status) && Reason(status) == "STORE_MOVED" &&
           Keys(*store, "job") == std::vector<std::string>{"a"};
  };
  fs::rename(dir.file("lorad.sqlite"), dir.file("away"));
  CHECK(refused());
  std::ofstream(dir.file("lorad.sqlite")) << "another";
  CHECK(refused());
  fs::rename(dir.file("away"), dir.file("lorad.sqlite"));
  CHECK(store->Apply({PutRecord("job", "b", "1")}).ok());
  fs::remove(dir.file("lorad.sqlite"));
  CHECK_FALSE(store->Apply({PutRecord("job", "lost", "1")}).ok());
}

TEST_CASE("what is no file is not opened as a store") {
  TempDir dir;
  REQUIRE(mkfifo(dir.file("lorad.sqlite").c_str(), 0600) == 0);  // to open it would wait for ever
  CHECK(Reason(JobStore::CheckIsOurs(dir.path())) == "STORE_CORRUPT");
  fs::remove(dir.file("lorad.sqlite"));
  fs::create_directory(dir.file("lorad.sqlite"));
  const absl::Status status = JobStore::CheckIsOurs(dir.path());
  CHECK(status.message().find("is no file: move it away") != std::string::npos);
}

TEST_CASE("another program's database is known by its first bytes") {
  TempDir dir;
  CHECK(JobStore::CheckIsOurs(dir.path()).ok());  // there is none
  {
    auto store = OpenOk(dir.path());  // which says what it is in its log alone
    REQUIRE(store->Apply({PutRecord("job", "a", "1")}).ok());
    CHECK(JobStore::CheckIsOurs(dir.path()).ok());
  }
  CHECK(JobStore::CheckIsOurs(dir.path()).ok());
  fs::remove(dir.file("lorad.sqlite"));
  std::ofstream(dir.file("lorad.sqlite"));
  CHECK(JobStore::CheckIsOurs(dir.path()).ok());  // a start that was killed at once
  for (const std::string application : {"0", "77"}) {
    fs::remove(dir.file("lorad.sqlite"));
    sqlite3* other = nullptr;
    REQUIRE(sqlite3_open(dir.file("lorad.sqlite").c_str(), &other) == SQLITE_OK);
    const std::string sql = "CREATE TABLE other (x); PRAGMA application_id=" + application;
    REQUIRE(sqlite3_exec(other, sql.c_str(), nullptr, nullptr, nullptr) == SQLITE_OK);
    sqlite3_close(other);
    const absl::Status status = JobStore::CheckIsOurs(dir.path());
    CHECK(Reason(status) == "STORE_CORRUPT");
    CHECK(status.message().find("left as it is; name another --data-dir") != std::string::npos);
    CHECK_FALSE(fs::exists(dir.file("lorad.sqlite-wal")));
    CHECK(Reason(JobStore::Open(dir.path()).status()) == "STORE_CORRUPT");
  }
}

TEST_CASE("a lock that is no file is left alone") {
  TempDir dir;
  std::ofstream(dir.file("precious")) << "text";
  fs::create_symlink("precious", dir.file("lock"));
  const auto invalid = [&] {
    return Reason(DirectoryLock::Take(dir.path()).status()) == "DATA_DIR_INVALID";
  };
  CHECK(invalid());
  CHECK(fs::file_size(dir.file("precious")) == 4);
  fs::remove(dir.file("lock"));
  fs::create_directory(dir.file("lock"));
  CHECK(invalid());
  fs::remove(dir.file("lock"));
  REQUIRE(mkfifo(dir.file("lock").c_str(), 0600) == 0);
  CHECK(invalid());
}

TEST_CASE("the lock names its holder and goes with it") {
  TempDir dir;
  {
    auto lock = DirectoryLock::Take(dir.path());
    REQUIRE(lock.ok());
    auto second = DirectoryLock::Take(dir.path());
    CHECK(absl::IsFailedPrecondition(second.status()));
    CHECK(Reason(second.status()) == "DATA_DIR_IN_USE");
    CHECK(std::string(second.status().message()).find(std::to_string(getpid())) !=
          std::string::npos);
  }
  CHECK(DirectoryLock::Take(dir.path()).ok());
  CHECK_FALSE(DirectoryLock::Take(dir.file("none")).ok());
}

}  // namespace
}  // namespace lorad::storage
