// What becomes of files that no record names when the daemon starts.
#include "server/store/startup.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "server/errors/errors.h"
#include "server/store/leftovers.h"
#include "storage/files/files.h"

namespace lorad::server {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "lorad_startup_XXXXXX").string();
    data_dir = std::make_unique<DataDir>(mkdtemp(pattern.data()));
    REQUIRE(MakeFolders(*data_dir, storage::RealFiles()).ok());
  }
  ~Folder() { fs::remove_all(data_dir->root()); }

  void Write(const std::string& path, const std::string& text = "x") {
    fs::create_directories(fs::path(data_dir->Full(path)).parent_path());
    std::ofstream(data_dir->Full(path)) << text;
  }
  void WriteCheckpoint(const std::string& path) {
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors", "manifest.json"}) {
      Write(path + "/" + file, path);
    }
  }
  bool Has(const std::string& path) { return fs::exists(data_dir->Full(path)); }
  std::string Read(const std::string& path) {
    return storage::RealFiles().ReadAll(data_dir->Full(path), 1000).value_or("");
  }
  std::vector<std::string> Clear(const std::vector<std::string>& in_use) {
    auto notes = Leftovers(*data_dir, storage::RealFiles(), in_use, {}).ClearUnsettled();
    REQUIRE(notes.ok());
    return *std::move(notes);
  }

  std::unique_ptr<DataDir> data_dir;
};

bool Tells(const std::vector<std::string>& notes, const std::string& part) {
  return std::ranges::any_of(
      notes, [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST_CASE("a store older than the files: what it does not name is kept in lost/, and told") {
  Folder folder;
  folder.Write("datasets/old-1.jsonl");
  folder.Write("datasets/new-2.jsonl", "new");
  folder.Write("adapters/a-1/adapter_config.json");
  folder.WriteCheckpoint("checkpoints/job-1/10");
  folder.WriteCheckpoint("checkpoints/job-1/20");
  folder.WriteCheckpoint("checkpoints/job-2/5");
  const std::vector<std::string> in_use = {"datasets/old-1.jsonl", "checkpoints/job-1/10"};
  const auto notes = folder.Clear(in_use);
  CHECK(folder.Has("datasets/old-1.jsonl"));
  CHECK(folder.Has("checkpoints/job-1/10/manifest.json"));
  CHECK(folder.Read("lost/datasets-new-2.jsonl") == "new");
  CHECK(folder.Has("lost/adapters-a-1/adapter_config.json"));
  CHECK(folder.Read("lost/checkpoints-job-1-20/manifest.json") == "checkpoints/job-1/20");
  CHECK(folder.Has("lost/checkpoints-job-2-5/manifest.json"));
  CHECK_FALSE(folder.Has("checkpoints/job-1/20"));
  CHECK_FALSE(folder.Has("checkpoints/job-2"));
  CHECK(Tells(notes, "no record names " + folder.data_dir->Full("datasets/new-2.jsonl") +
                         ": it was moved to " +
                         folder.data_dir->Full("lost/datasets-new-2.jsonl")));
  CHECK(Tells(notes, "lost holds 4 files and folders"));

  // Again under the same name: both are kept.
  folder.Write("datasets/new-2.jsonl", "newer");
  CHECK(Tells(folder.Clear(in_use), "lost holds 5"));
  CHECK(folder.Read("lost/datasets-new-2.jsonl") == "new");
  CHECK(folder.Read("lost/datasets-new-2.jsonl-2") == "newer");
}

TEST_CASE("links and strangers among the checkpoints: nothing is followed, taken or lost") {
  Folder folder;
  Folder outside;
  outside.Write("old/5/deep/valuable");
  outside.WriteCheckpoint("job-9/5");
  folder.WriteCheckpoint("checkpoints/job-1/10");
  folder.Write("checkpoints/.DS_Store");
  const auto link = [&](const std::string& to, const std::string& path) {
    fs::create_symlink(to, folder.data_dir->Full(path));
  };
  link("job-1", "checkpoints/latest");
  link("10", "checkpoints/job-1/newest");
  link(outside.data_dir->Full("old"), "checkpoints/old");
  link(outside.data_dir->Full("job-9"), "checkpoints/job-9");  // a record names what it holds
  link("nowhere", "datasets/dangling");
  const auto notes = folder.Clear({"checkpoints/job-1/10", "checkpoints/job-9/5"});
  CHECK(folder.Has("checkpoints/job-1/10/manifest.json"));
  CHECK(folder.Has("checkpoints/job-9/5/manifest.json"));
  CHECK(outside.Has("old/5/deep/valuable"));
  for (const char* moved : {"checkpoints-.DS_Store", "checkpoints-latest", "checkpoints-old",
                            "checkpoints-job-1-newest", "datasets-dangling"}) {
    CAPTURE(moved);
    CHECK(Tells(notes, folder.data_dir->Full(std::string("lost/") + moved)));
  }
  CHECK(fs::is_symlink(folder.data_dir->Full("lost/checkpoints-old")));
  CHECK(folder.Clear({"checkpoints/job-1/10", "checkpoints/job-9/5"}).size() == 1);  // of lost/

  // Jobs that have ended are looked at later.
  Leftovers settled(*folder.data_dir, storage::RealFiles(), {}, {"checkpoints/job-9"});
  REQUIRE(settled.ClearSettled(1).ok());
  CHECK(outside.Has("job-9/5/manifest.json"));
}

TEST_CASE("a folder of the data directory that is a file or a link is refused, with the way out") {
  for (const std::string name : {"uploads", "checkpoints", "cache", "lost"}) {
    for (const bool link : {false, true}) {
      CAPTURE(name, link);
      Folder folder;
      const std::string path = folder.data_dir->Full(name);
      fs::remove(path);
      link ? fs::create_directory_symlink(fs::temp_directory_path(), path)
           : folder.Write(name, "a file");
      const absl::Status status = MakeFolders(*folder.data_dir, storage::RealFiles());
      CHECK(Reason(status) == "DATA_DIR_INVALID");
      CHECK(std::string(status.message()).find(path + " must be a directory") == 0);
    }
  }
}

TEST_CASE("what was on its way, being written or being removed is not kept") {
  Folder folder;
  folder.Write("uploads/7-1");
  folder.Write("cache/half.tmp");
  folder.Write("cache/whole");
  folder.WriteCheckpoint("checkpoints/job-1/10.tmp");
  folder.Write("checkpoints/job-2/10/adapter_config.json");  // no manifest
  folder.Write("checkpoints/job-3/10/manifest.json");        // its first file is removed
  folder.Write("adapters/a-1/adapter_model.safetensors");
  folder.WriteCheckpoint("checkpoints/job-4/20.tmp");  // and the one that is named is gone
  CHECK(folder.Clear({"checkpoints/job-4/10"}).empty());
  CHECK(folder.Has("checkpoints/job-4"));
  CHECK_FALSE(folder.Has("checkpoints/job-4/20.tmp"));
  CHECK(folder.Has("cache/whole"));
  for (const char* path : {"uploads/7-1", "cache/half.tmp", "checkpoints/job-1",
                           "checkpoints/job-2", "checkpoints/job-3", "adapters/a-1"}) {
    CAPTURE(path);
    CHECK_FALSE(folder.Has(path));
  }
  CHECK(fs::is_empty(folder.data_dir->Full("lost")));
}

TEST_CASE("folders of ended jobs are looked into later, a few at a time") {
  Folder folder;
  folder.WriteCheckpoint("checkpoints/job-1/10");
  folder.WriteCheckpoint("checkpoints/job-1/20.tmp");
  folder.WriteCheckpoint("checkpoints/job-2/5");
  folder.WriteCheckpoint("checkpoints/live/5.tmp");
  Leftovers leftovers(*folder.data_dir, storage::RealFiles(), {"checkpoints/job-1/10"},
                      {"checkpoints/job-1", "checkpoints/job-2", "checkpoints/job-deleted"});
  auto notes = leftovers.ClearUnsettled();
  REQUIRE(notes.ok());
  CHECK(notes->empty());
  CHECK_FALSE(folder.Has("checkpoints/live"));
  CHECK(folder.Has("checkpoints/job-1/20.tmp"));
  CHECK(folder.Has("checkpoints/job-2/5"));

  std::vector<std::string> told;
  for (int i = 0; i < 3; ++i) {
    CHECK_FALSE(leftovers.done());
    notes = leftovers.ClearSettled(1);
    REQUIRE(notes.ok());
    told.insert(told.end(), notes->begin(), notes->end());
  }
  CHECK(leftovers.done());
  CHECK_FALSE(folder.Has("checkpoints/job-1/20.tmp"));
  CHECK(folder.Has("checkpoints/job-1/10"));
  CHECK_FALSE(folder.Has("checkpoints/job-2"));
  CHECK(folder.Has("lost/checkpoints-job-2-5/manifest.json"));
  CHECK(told.size() == 1);
}

}  // namespace
}  // namespace lorad::server
