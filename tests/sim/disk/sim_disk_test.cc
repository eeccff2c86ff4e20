#include "tests/sim/disk/sim_disk.h"

#include <catch2/catch.hpp>
#include <cerrno>
#include <set>

#include "tests/sim/disk/sim_files.h"

namespace lorad::sim {
namespace {

using storage::AtomicWrite;
using storage::WriteSynced;

std::string Content(SimDisk& disk, const std::string& path) {
  auto bytes = SimFiles(disk).ReadAll(path, 1 << 20);
  return bytes.ok() ? *bytes : "absent";
}

void WriteOnly(SimDisk& disk, const std::string& path, std::string_view bytes) {
  auto file = SimFiles(disk).Create(path);
  REQUIRE(file.ok());
  REQUIRE((*file)->Append(bytes).ok());
}

TEST_CASE("a disk does for Files what the operating system's does") {
  SimDisk disk;
  SimFiles files(disk);
  REQUIRE(files.MakeDirectory("/a/b/c").ok());
  REQUIRE(files.MakeDirectory("/a/b/c").ok());
  WriteOnly(disk, "/a/b/c/file", "hello");
  {
    auto file = files.OpenAppend("/a/b/c/file");
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(" world").ok());
  }
  CHECK(Content(disk, "/a/b/c/file") == "hello world");
  CHECK(absl::IsOutOfRange(files.ReadAll("/a/b/c/file", 10).status()));
  CHECK(files.ReadRange("/a/b/c/file", 6, 50).value() == "world");
  std::string read(5, '?');
  const auto open = files.OpenToRead("/a/b/c/file");
  REQUIRE((*open)->ReadAt(6, 5, read.data()).ok());
  CHECK(read == "world");
  CHECK(absl::IsOutOfRange((*open)->ReadAt(7, 5, read.data())));
  CHECK(absl::IsNotFound(files.OpenToRead("/a/none").status()));
  CHECK(files.Size("/a/b/c/file").value() == 11);
  CHECK(disk.used_bytes() == 11);
  CHECK(absl::IsNotFound(files.Create("/no/file").status()));
  CHECK(absl::IsAlreadyExists(files.Remove("/a/b")));
  CHECK(absl::IsAlreadyExists(files.Rename("/a/b/c", "/a")));
  REQUIRE(files.Rename("/a/b/c/file", "/a/z").ok());
  CHECK(files.List("/a").value() == std::vector<std::string>{"b", "z"});
  CHECK(files.IsDirectory("/a/b/c"));
  REQUIRE(storage::RemoveTree(files, "/a").ok());
  CHECK_FALSE(files.Exists("/a"));
  CHECK(disk.used_bytes() == 0);
}

TEST_CASE("a power loss keeps what was synced, and any part of the rest") {
  std::set<std::string> found;
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    SimDisk disk(seed);
    SimFiles files(disk);
    REQUIRE(AtomicWrite(files, "/f", std::string(1024, 'o')).ok());
    WriteOnly(disk, "/f", std::string(1024, 'n'));
    WriteOnly(disk, "/g", "");
    disk.PowerLoss();
    std::string content = Content(disk, "/f");
    // Truncated or not, each sector old, new, zero or not there.
    if (content.size() > 512) content.erase(513, 510);
    found.insert(content.substr(0, 1) + content.substr(std::min<size_t>(content.size(), 512), 1) +
                 (files.Exists("/g") ? " and g" : ""));
  }
  CHECK(found.contains("oo"));
  CHECK(found.contains("nn"));
  CHECK(found.contains("on"));
  CHECK(found.contains("no"));
  CHECK(found.contains(""));
  CHECK(found.contains("n"));
  CHECK(found.contains("nn and g"));
  CHECK(found.contains(std::string("\0n", 2)));
}

TEST_CASE("a rename is done or not, also from one directory to another") {
  std::set<std::string> found;
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    SimDisk disk(seed);
    SimFiles files(disk);
    REQUIRE(files.MakeDirectory("/from").ok());
    REQUIRE(files.MakeDirectory("/to").ok());
    REQUIRE(AtomicWrite(files, "/from/f", "f").ok());
    REQUIRE(files.SyncDirectory("/").ok());
    REQUIRE(files.Rename("/from/f", "/to/f").ok());
    const bool synced = seed % 2 == 0;
    if (synced) REQUIRE(files.SyncDirectory("/to").ok());
    disk.PowerLoss();
    REQUIRE(files.Exists("/from/f") != files.Exists("/to/f"));
    if (synced) REQUIRE(files.Exists("/to/f"));
    found.insert(files.Exists("/to/f") ? "done" : "not");
  }
  CHECK(found.size() == 2);
}

TEST_CASE("what a failed sync of a file left out is not written by the next one") {
  int lost = 0;
  for (uint64_t seed = 1; seed <= 50; ++seed) {
    SimDisk disk(seed);
    SimFiles files(disk);
    auto file = files.Create("/f");
    REQUIRE(file.ok());
    REQUIRE(files.SyncDirectory("/").ok());
    REQUIRE((*file)->Append("bytes").ok());
    disk.set_fault([](SimDisk::Call call, const std::string&) {
      return call == SimDisk::Call::kSync ? EIO : 0;
    });
    CHECK(absl::IsInternal((*file)->Sync()));
    disk.set_fault(nullptr);
    CHECK((*file)->Sync().ok());
    CHECK(Content(disk, "/f") == "bytes");
    disk.PowerLoss();
    lost += Content(disk, "/f") != "bytes";
  }
  CHECK(lost > 5);
}

TEST_CASE("a dead process changes nothing, and its files are closed") {
  SimDisk disk;
  SimFiles files(disk);
  REQUIRE(AtomicWrite(files, "/f", "f").ok());
  auto file = files.OpenAppend("/f");
  REQUIRE(file.ok());
  disk.StopAfter(1);
  REQUIRE((*file)->Append("1").ok());
  CHECK_FALSE(disk.stopped());
  CHECK_FALSE((*file)->Sync().ok());
  CHECK(disk.stopped());
  CHECK_FALSE(files.Remove("/f").ok());
  disk.Restart();
  CHECK_FALSE((*file)->Append("2").ok());
  CHECK(Content(disk, "/f") == "f1");
}

TEST_CASE("a full disk takes what fits, a read-only one nothing") {
  SimDisk disk;
  SimFiles files(disk);
  disk.set_capacity_bytes(10);
  CHECK(absl::IsResourceExhausted(WriteSynced(files, "/f", "twelve bytes")));
  CHECK(Content(disk, "/f") == "twelve byt");
  REQUIRE(files.Remove("/f").ok());
  CHECK(WriteSynced(files, "/f", "ten bytes.").ok());
  disk.set_read_only(true);
  CHECK(absl::IsUnavailable(files.Remove("/f")));
  CHECK(absl::IsUnavailable(files.Create("/f").status()));
  CHECK(Content(disk, "/f") == "ten bytes.");
  disk.set_read_only(false);
  CHECK(files.Remove("/f").ok());
}

TEST_CASE("faults come by chance, the same ones for the same seed") {
  const auto history = [](uint64_t seed) {
    SimDisk disk(seed);
    SimFiles files(disk);
    disk.set_fault(RandomFaults({.no_space = 0.1, .write_error = 0.1, .sync_error = 0.1}, seed));
    std::string codes;
    for (int i = 0; i < 100; ++i) {
      codes += std::to_string(static_cast<int>(AtomicWrite(files, "/f", "f").code())) + " ";
    }
    return codes;
  };
  CHECK(history(1) == history(1));
  CHECK(history(1) != history(2));
  CHECK(history(1).find("8 ") != std::string::npos);   // RESOURCE_EXHAUSTED
  CHECK(history(1).find("13 ") != std::string::npos);  // INTERNAL
  CHECK(history(1).find("0 ") != std::string::npos);
}

}  // namespace
}  // namespace lorad::sim
