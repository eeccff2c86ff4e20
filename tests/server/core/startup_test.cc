// What becomes of files that no record names when the daemon starts.
#include "server/store/startup.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

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

TEST_CASE("what was on its way, being written or being removed is not kept") {
  Folder folder;
  folder.Write("uploads/7-1");
  folder.Write("cache/half.tmp");
  folder.Write("cache/whole");
  folder.WriteCheckpoint("checkpoints/job-1/10.tmp");
  folder.Write("checkpoints/job-2/10/adapter_config.json");  // no manifest
  folder.Write("checkpoints/job-3/10/manifest.json");        // its first file is removed
  folder.Write("adapters/a-1/adapter_model.safetensors");
  CHECK(folder.Clear({}).empty());
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
