// What slots start from, streamed as shards.
#include "storage/adapters/shard_reader.h"

#include <catch2/catch.hpp>
#include <set>

#include "storage/files/errors.h"
#include "storage/files/sha256.h"
#include "tests/storage/shards.h"
#include "tests/storage/temp_directory.h"

namespace lorad::storage {
namespace {

using Catch::Matchers::Contains;

TEST_CASE("an adapter alone streams as a shard without moments, in float32", "[checkpoint]") {
  const TempDirectory directory;
  directory.Write("adapter_config.json", WritePeftConfig(Config()));
  const SafetensorsLayout layout({{PeftKey("m.q_proj", 'A'), TensorType::kBF16, {4, 1}},
                                  {PeftKey("m.q_proj", 'B'), TensorType::kF16, {1, 4}},
                                  {PeftKey("m.v_proj", 'A'), TensorType::kF32, {4, 1}},
                                  {PeftKey("m.v_proj", 'B'), TensorType::kF32, {1, 4}}},
                                 {});
  // 1.0 in each: float32, float32, then the 16-bit types in the order of their names.
  std::string data;
  for (int i = 0; i < 8; ++i) data += std::string("\x00\x00\x80\x3f", 4);
  for (int i = 0; i < 4; ++i) data += std::string("\x80\x3f", 2);
  for (int i = 0; i < 4; ++i) data += std::string("\x00\x3c", 2);
  directory.Write("adapter_model.safetensors", layout.prefix() + data);
  const std::string shard =
      Read(ShardReader::OfAdapter(RealFiles(), directory.path(), "job-9")).value();
  const auto header = ParseSafetensorsHeader(shard, shard.size());
  REQUIRE(header.ok());
  CHECK(ShardState(*header).value() == CheckpointState{"job-9", 0, ""});
  REQUIRE(header->tensors.size() == 4);
  for (const TensorInfo& tensor : header->tensors) {
    CHECK(tensor.type == TensorType::kF32);
    std::vector<float> values(4);
    ConvertToFloat(tensor.type, shard.data() + header->data_begin + tensor.begin, 4, values.data());
    CHECK(values == std::vector<float>(4, 1.0f));
  }

  // With the manifest that an import writes, what is damaged at rest does not stream.
  std::vector<ListedFile> listed;
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const std::string bytes = directory.Read(name);
    listed.push_back({name, bytes.size(), Sha256::Of(bytes)});
  }
  directory.Write("manifest.json", ManifestText(listed));
  const auto read = [&] {
    return Read(ShardReader::OfAdapter(RealFiles(), directory.path(), "job-9"));
  };
  CHECK(read().value() == shard);
  CHECK(PeftAdapter::Open(directory.path()).ok());
  std::string other = data;
  other.back() = '\0';
  directory.Write("adapter_model.safetensors", layout.prefix() + other);
  CHECK(ReasonOf(read().status()) == "CHECKPOINT_CORRUPT");
  directory.Write("adapter_model.safetensors", layout.prefix() + data.substr(0, 40));
  CHECK(ReasonOf(read().status()) == "CHECKPOINT_CORRUPT");
  directory.Write("adapter_model.safetensors", layout.prefix() + data);
  PeftConfig config = Config();
  config.alpha += 1;
  directory.Write("adapter_config.json", WritePeftConfig(config));
  CHECK(ReasonOf(read().status()) == "CHECKPOINT_CORRUPT");
  CHECK(ReasonOf(PeftAdapter::Open(directory.path()).status()) == "CHECKPOINT_CORRUPT");
  directory.Write("adapter_config.json", WritePeftConfig(Config()));
  CHECK(read().value() == shard);
  directory.Write("manifest.json", "{}");
  CHECK(ReasonOf(read().status()) == "CHECKPOINT_CORRUPT");
}

TEST_CASE("a checkpoint that is not as it was committed does not stream", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").ok());
  const auto stream = [&] {
    return Read(ShardReader::OfCheckpoint(RealFiles(), directory / "c")).status();
  };
  const auto check_corrupt = [&](const std::string& name) {
    const absl::Status status = stream();
    CHECK(absl::IsDataLoss(status));
    CHECK_THAT(std::string(status.message()), Contains("c/" + name));
    CHECK(status.GetPayload(Absl(kReasonPayload)) == absl::Cord("CHECKPOINT_CORRUPT"));
  };
  REQUIRE(stream().ok());
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors",
                           "optimizer.safetensors", "state.json"}) {
    INFO(name);
    const std::string path = std::string("c/") + name;
    const std::string bytes = directory.Read(path);
    for (const size_t at : {size_t{8}, bytes.size() / 2, bytes.size() - 1}) {
      INFO("byte " << at);
      std::string changed = bytes;
      changed[at] = static_cast<char>(changed[at] ^ 4);
      directory.Write(path, changed);
      check_corrupt(name);
    }
    directory.Write(path, bytes.substr(0, bytes.size() - 1));
    check_corrupt(name);
    directory.Write(path, bytes);
  }
  directory.Write("c/manifest.json", "{}");
  check_corrupt("manifest.json");
  std::filesystem::remove(directory / "c/manifest.json");
  check_corrupt("manifest.json");
  // The job's folder is there; where it is not, its disk may not be mounted.
  CHECK(
      absl::IsDataLoss(Read(ShardReader::OfCheckpoint(RealFiles(), directory / "other")).status()));
  CHECK(absl::IsNotFound(
      Read(ShardReader::OfCheckpoint(RealFiles(), directory / "job/step-7")).status()));
}

TEST_CASE("a stage has its own matrices alone streamed, of a checkpoint that is whole",
          "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").ok());
  const auto stream = [&](const std::set<std::string, std::less<>>& matrices) {
    auto reader = ShardReader::OfCheckpoint(RealFiles(), directory / "c");
    REQUIRE(reader.ok());
    (*reader)->Only(matrices);
    return Read(std::move(reader));
  };
  std::set<std::string, std::less<>> first_layer, all;
  std::vector<TensorEntry> entries;
  for (const TensorEntry& entry : ShardEntries()) {
    all.insert(entry.name);
    if (entry.name.find(".layers.0.") == std::string::npos) continue;
    first_layer.insert(entry.name);
    entries.push_back(entry);
  }
  REQUIRE(!entries.empty());
  REQUIRE(entries.size() < ShardEntries().size());
  first_layer.insert("not.there");
  const std::string part = stream(first_layer).value();
  const SafetensorsLayout layout(entries, ShardMetadata(kState));
  CHECK(part.size() == layout.file_bytes());
  CHECK(part.substr(0, layout.prefix().size()) == layout.prefix());
  const std::string whole = ShardBytes();
  const auto header = ParseSafetensorsHeader(whole, whole.size());
  for (const TensorInfo& tensor : layout.tensors()) {
    CHECK(part.substr(layout.prefix().size() + tensor.begin, tensor.bytes()) ==
          whole.substr(header->data_begin + header->Find(tensor.name)->begin, tensor.bytes()));
  }
  CHECK(stream(all).value() == whole);
  // What others have is damaged: nobody goes on from such a checkpoint.
  std::string changed = directory.Read("c/optimizer.safetensors");
  changed.back() = static_cast<char>(changed.back() ^ 4);
  directory.Write("c/optimizer.safetensors", changed);
  CHECK(ReasonOf(stream(first_layer).status()) == "CHECKPOINT_CORRUPT");
}

TEST_CASE("a checkpoint's weights alone are compared with the manifest too", "[checkpoint]") {
  const TempDirectory directory;
  const std::string shard = directory.Write("shard", ShardBytes());
  REQUIRE(CommitCheckpoint(RealFiles(), {shard}, kState, Config(), directory / "c").ok());
  const auto read = [&] {
    return Read(ShardReader::OfWeights(RealFiles(), directory / "c", "job-9"));
  };
  REQUIRE(read().ok());
  const auto header = ParseSafetensorsHeader(*read(), read()->size());
  REQUIRE(header.ok());
  CHECK(ShardState(*header).value() == CheckpointState{"job-9", 0, ""});
  std::string weights = directory.Read("c/adapter_model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  directory.Write("c/adapter_model.safetensors", weights);
  CHECK(absl::IsDataLoss(read().status()));
}

}  // namespace
}  // namespace lorad::storage
