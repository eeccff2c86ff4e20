#include "storage/adapters/checkpoint.h"

#include <catch2/catch.hpp>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "storage/files/errors.h"
#include "storage/files/sha256.h"
#include "tests/storage/shards.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

// Counts the effects that pass, and fails all from the given one on: a process that was killed
// there.
class DyingFiles : public Files {
 public:
  explicit DyingFiles(int effects) : left_(effects) {}
  bool died() const { return left_ < 0; }

  absl::StatusOr<std::unique_ptr<WritableFile>> Create(const std::string& path) override {
    if (Die()) return Dead();
    auto file = RealFiles().Create(path);
    if (!file.ok()) return file.status();
    return std::make_unique<DyingFile>(*this, *std::move(file));
  }
  absl::StatusOr<std::unique_ptr<WritableFile>> OpenAppend(const std::string&) override {
    return absl::UnimplementedError("not used here");
  }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return Die() ? Dead() : RealFiles().Rename(from, to);
  }
  absl::Status SyncDirectory(const std::string& path) override {
    return Die() ? Dead() : RealFiles().SyncDirectory(path);
  }
  absl::Status Remove(const std::string& path) override {
    return Die() ? Dead() : RealFiles().Remove(path);
  }
  absl::Status MakeDirectory(const std::string& path) override {
    return Die() ? Dead() : RealFiles().MakeDirectory(path);
  }
  absl::StatusOr<std::vector<std::string>> List(const std::string& path) override {
    return RealFiles().List(path);
  }
  absl::StatusOr<std::string> ReadAll(const std::string& path, uint64_t limit) override {
    return RealFiles().ReadAll(path, limit);
  }
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    return RealFiles().ReadRange(path, offset, length);
  }
  absl::StatusOr<uint64_t> Size(const std::string& path) override { return RealFiles().Size(path); }
  bool Exists(const std::string& path) override { return RealFiles().Exists(path); }
  bool IsDirectory(const std::string& path) override { return RealFiles().IsDirectory(path); }

 private:
  class DyingFile : public WritableFile {
   public:
    DyingFile(DyingFiles& files, std::unique_ptr<WritableFile> file)
        : files_(files), file_(std::move(file)) {}
    absl::Status Append(std::string_view bytes) override {
      if (!files_.Die()) return file_->Append(bytes);
      // Half of a write may have reached the disk.
      file_->Append(bytes.substr(0, bytes.size() / 2)).IgnoreError();
      return Dead();
    }
    absl::Status Sync() override { return files_.Die() ? Dead() : file_->Sync(); }
    absl::Status Close() override { return files_.Die() ? Dead() : file_->Close(); }

   private:
    DyingFiles& files_;
    std::unique_ptr<WritableFile> file_;
  };

  bool Die() { return left_ < 0 || --left_ < 0; }
  static absl::Status Dead() { return absl::InternalError("killed"); }
  int left_;
};

// Matrices with their moments, every `of`-th of them from `first` on; all bytes differ.
std::string PartOfShard(const SafetensorsFile& whole, size_t first, size_t of) {
  std::vector<TensorEntry> entries;
  for (size_t i = 0; i < whole.tensors().size(); ++i) {
    const TensorInfo& tensor = whole.tensors()[i];
    if (i / 3 % of == first) entries.push_back({tensor.name, tensor.type, tensor.shape});
  }
  std::string bytes;
  const SafetensorsLayout layout(std::move(entries), whole.header().metadata);
  SafetensorsWriter writer(layout, [&](std::string_view piece) {
    bytes += piece;
    return absl::OkStatus();
  });
  REQUIRE(writer.Start().ok());
  for (const TensorInfo& tensor : layout.tensors()) {
    REQUIRE(writer.Append(*whole.Read(*whole.Find(tensor.name), 0, tensor.bytes())).ok());
  }
  writer.Finish();
  return bytes;
}

TEST_CASE("the shards of any number of stages become the same checkpoint", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "one").ok());
  const std::vector<std::string> names = RealFiles().List(directory / "one").value();
  const auto whole = SafetensorsFile::Open(shard);
  REQUIRE(whole.ok());
  for (const size_t stages : {2, 3}) {
    std::vector<std::string> parts;
    for (size_t i = 0; i < stages; ++i) {
      parts.push_back(directory.Write("part-" + std::to_string(i), PartOfShard(*whole, i, stages)));
    }
    const std::string many = directory / ("of-" + std::to_string(stages));
    const auto committed = CommitCheckpoint(RealFiles(), parts, kState, Config(), many);
    INFO(committed.status().ToString());
    REQUIRE(committed.ok());
    for (const std::string& name : names) {
      INFO(name);
      CHECK(directory.Read("one/" + name) ==
            directory.Read("of-" + std::to_string(stages) + "/" + name));
    }
    const auto refused = [&](const std::vector<std::string>& shards) {
      return std::string(CommitCheckpoint(RealFiles(), shards, kState, Config(), directory / "none")
                             .status()
                             .message());
    };
    CHECK_THAT(refused({parts[0], parts[0]}), Contains("is in two shards"));
    CHECK_THAT(refused({parts[1]}), Contains("part-1"));
  }
}

TEST_CASE("a shard becomes a checkpoint that is an adapter, and a shard again", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  const auto committed =
      CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "step-7");
  REQUIRE(committed.ok());
  CHECK(RealFiles().List(directory / "step-7").value() ==
        std::vector<std::string>{"adapter_config.json", "adapter_model.safetensors",
                                 "manifest.json", "optimizer.safetensors", "state.json"});

  const auto opened = OpenCheckpoint(RealFiles(), directory / "step-7", true);
  REQUIRE(opened.ok());
  CHECK(opened->state == kState);
  REQUIRE(opened->files.size() == 4);
  CHECK(opened->files[1].sha256 == Sha256::Of(directory.Read("step-7/adapter_model.safetensors")));
  CHECK(opened->files[1].sha256 == committed->files[1].sha256);

  const auto adapter = PeftAdapter::Open(directory / "step-7");
  REQUIRE(adapter.ok());
  CHECK(adapter->CheckFits(DescribeModel(kTiny).value()).ok());
  CHECK(adapter->file().header().metadata.at("format") == "pt");

  const std::string again =
      Read(ShardReader::OfCheckpoint(RealFiles(), directory / "step-7")).value();
  CHECK(again == ShardBytes());
}

TEST_CASE("a shard that is not what was asked for is refused", "[checkpoint]") {
  const TempDirectory directory;
  const auto message = [&](const std::vector<TensorEntry>& entries,
                           const std::map<std::string, std::string>& metadata) {
    const std::string shard = directory.Write("shard", SafetensorsOf(entries, metadata));
    const auto committed =
        CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "step-7");
    CHECK_FALSE(RealFiles().Exists(directory / "step-7"));
    return committed.ok() ? "ok" : std::string(committed.status().message());
  };
  CHECK_THAT(message(ShardEntries(), {}), Contains("needs job, step and numerics_id"));
  CHECK_THAT(message(ShardEntries(), ShardMetadata({"job-2", 7, "cpu-abc"})),
             Contains("of job \"job-2\" at step 7"));
  CHECK_THAT(message(ShardEntries(), ShardMetadata({"job-1", 8, "cpu-abc"})),
             Contains("at step 8"));
  CHECK_THAT(message(ShardEntries(), ShardMetadata({"job-1", 7, "gpu"})), Contains("(gpu)"));
  CHECK_THAT(message(ShardEntries(), {{"job", "j"}, {"step", "7x"}, {"numerics_id", ""}}),
             Contains("its step is \"7x\""));
  std::vector<TensorEntry> entries = ShardEntries();
  entries.pop_back();
  CHECK_THAT(message(entries, ShardMetadata(kState)), Contains("has no .exp_avg_sq of its shape"));
  entries = ShardEntries();
  entries.erase(entries.begin());
  CHECK_THAT(message(entries, ShardMetadata(kState)), Contains("a moment belongs to no matrix"));
  entries = ShardEntries();
  entries[1].type = TensorType::kF16;
  CHECK_THAT(message(entries, ShardMetadata(kState)), Contains("is not float32"));
  entries = ShardEntries();
  entries.erase(entries.begin(), entries.begin() + 3);
  CHECK_THAT(message(entries, ShardMetadata(kState)), Contains("missing tensor"));
  // The last value of the file, of a moment.
  std::string bytes = SafetensorsOf(ShardEntries(), ShardMetadata(kState));
  const float none = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(bytes.data() + bytes.size() - sizeof(none), &none, sizeof(none));
  const std::string shard = directory.Write("shard", bytes);
  const auto committed =
      CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "step-7");
  CHECK(absl::IsInvalidArgument(committed.status()));
  CHECK_THAT(std::string(committed.status().message()), Contains("a value that is not finite"));
  CHECK_FALSE(RealFiles().Exists(directory / "step-7.tmp"));
}

TEST_CASE("a commit may be tried again, but not over another checkpoint", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  const auto commit = [&](const CheckpointState& state) {
    directory.Write("shard", SafetensorsOf(ShardEntries(), ShardMetadata(state)));
    return CommitCheckpoint(RealFiles(), {shard}, state, Config(), directory / "step-7").status();
  };
  CHECK(commit(kState).ok());
  CHECK(commit(kState).ok());
  CHECK(absl::IsAlreadyExists(commit({"job-2", 7, "cpu-abc"})));
}

TEST_CASE("damage to a checkpoint is found", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").ok());
  const auto message = [&](bool verify) {
    const auto checkpoint = OpenCheckpoint(RealFiles(), directory / "c", verify);
    return checkpoint.ok() ? "ok" : std::string(checkpoint.status().message());
  };
  const std::string weights = directory.Read("c/adapter_model.safetensors");
  std::string changed = weights;
  changed.back() = static_cast<char>(changed.back() ^ 1);
  directory.Write("c/adapter_model.safetensors", changed);
  CHECK(message(false) == "ok");
  CHECK_THAT(message(true), Contains("its sha256 is not the manifest's"));
  directory.Write("c/adapter_model.safetensors", weights.substr(1));
  CHECK_THAT(message(false), Contains("the manifest says"));
  directory.Write("c/adapter_model.safetensors", weights);
  std::filesystem::rename(directory / "c/state.json", directory / "c/other");
  CHECK_THAT(message(false), Contains("state.json"));
  std::filesystem::rename(directory / "c/other", directory / "c/state.json");
  CHECK(message(true) == "ok");
  const std::string manifest = directory.Read("c/manifest.json");
  for (const char* bad :
       {"", "[]", "{}", R"({"format_version":2,"files":{}})", R"({"format_version":1,"files":{}})",
        R"({"format_version":1,"files":{"state.json":{}}})"}) {
    INFO(bad);
    directory.Write("c/manifest.json", bad);
    CHECK_THAT(message(false), Contains("manifest.json: "));
  }
  nlohmann::json json = nlohmann::json::parse(manifest);
  json["files"]["../../etc/passwd"] = json["files"]["state.json"];
  directory.Write("c/manifest.json", json.dump());
  CHECK_THAT(message(false), Contains("does not list exactly"));
}

// Reads fail with EIO from a byte on.
class WornFiles final : public DyingFiles {
 public:
  explicit WornFiles(uint64_t good_bytes) : DyingFiles(1000), good_bytes_(good_bytes) {}
  absl::StatusOr<std::string> ReadRange(const std::string& path, uint64_t offset,
                                        uint64_t length) override {
    if (offset + length > good_bytes_) return FileError("read", path, EIO);
    return DyingFiles::ReadRange(path, offset, length);
  }

 private:
  const uint64_t good_bytes_;
};

TEST_CASE("an error of the disk is the reader's, and no damage", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").ok());
  const uint64_t size = directory.Read("c/adapter_model.safetensors").size();
  for (const uint64_t good : {uint64_t{0}, uint64_t{64}, size - 1}) {
    INFO("EIO from byte " << good << " on");
    WornFiles worn(good);
    CHECK(absl::IsInternal(Read(ShardReader::OfCheckpoint(worn, directory / "c")).status()));
  }
}

TEST_CASE("a commit of what is there already writes nothing and returns it", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  const auto first = CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c");
  REQUIRE(first.ok());
  DyingFiles reads_only(0);
  const auto second = CommitCheckpoint(reads_only, {shard}, kState, Config(), directory / "c");
  REQUIRE(second.ok());
  CHECK_FALSE(reads_only.died());
  CHECK(second->state == kState);
  REQUIRE(second->files.size() == first->files.size());
  for (size_t i = 0; i < first->files.size(); ++i) {
    CHECK(second->files[i].name == first->files[i].name);
    CHECK(second->files[i].sha256 == first->files[i].sha256);
  }
  // What only looks like it is not taken for it.
  std::string weights = directory.Read("c/adapter_model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  directory.Write("c/adapter_model.safetensors", weights);
  CHECK(absl::IsAlreadyExists(
      CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").status()));
}

TEST_CASE("a commit that dies at any effect leaves all or nothing, and can be tried again",
          "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  const std::string target = directory / "step-7";
  int effects = 0;
  for (;; ++effects) {
    INFO("killed at effect " << effects);
    DyingFiles dying(effects);
    const auto committed = CommitCheckpoint(dying, {shard}, kState, Config(), target);
    if (!dying.died()) {
      CHECK(committed.ok());
      break;
    }
    CHECK_FALSE(committed.ok());
    // What the next process finds.
    if (RealFiles().Exists(target)) CHECK(OpenCheckpoint(RealFiles(), target, true).ok());
    REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), target).ok());
    CHECK(OpenCheckpoint(RealFiles(), target, true).ok());
    CHECK_FALSE(RealFiles().Exists(target + ".tmp"));
    REQUIRE(RemoveTree(RealFiles(), target).ok());
  }
  CHECK(effects > 20);
}

}  // namespace
}  // namespace lorad::storage
