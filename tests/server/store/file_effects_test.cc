#include "server/store/file_effects.h"

#include <stdlib.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "storage/adapters/checkpoint.h"
#include "storage/adapters/peft.h"
#include "storage/models/model_description.h"
#include "tests/storage/published_configs.h"
#include "tests/storage/safetensors_bytes.h"

namespace lorad::server {
namespace {

namespace fs = std::filesystem;

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "lorad_effects_XXXXXX").string();
    data_dir = std::make_unique<DataDir>(mkdtemp(pattern.data()));
    fs::create_directories(data_dir->Full("uploads"));
    fs::create_directories(data_dir->Full("checkpoints"));
  }
  ~Folder() { fs::remove_all(data_dir->root()); }

  absl::StatusOr<v1::Checkpoint> Execute(const WriteCheckpoint& write) {
    return server::Execute(write, *data_dir, storage::RealFiles());
  }

  std::unique_ptr<DataDir> data_dir;
};

WriteCheckpoint NewWrite(const Folder& folder, const std::string& numerics_id = "cpu") {
  WriteCheckpoint write;
  write.uploads = {folder.data_dir->NewUpload()};
  write.path = "checkpoints/job-1/7";
  write.job = "job-1";
  write.step = 7;
  write.numerics_id = numerics_id;
  write.adapter.set_rank(4);
  write.adapter.set_alpha(8);
  write.adapter.add_target_modules("q_proj");
  std::vector<storage::TensorEntry> entries;
  storage::PeftConfig config;
  config.rank = 4;
  config.target_modules = {"q_proj"};
  const auto targets =
      storage::ResolveTargets(config, storage::DescribeModel(storage::kTiny).value());
  for (const auto& tensor : storage::PeftTensors(targets.modules)) {
    for (const char* suffix : {"", storage::kFirstMomentSuffix, storage::kSecondMomentSuffix}) {
      entries.push_back({tensor.name + suffix, storage::TensorType::kF32, tensor.shape});
    }
  }
  std::ofstream(write.uploads.front()) << storage::SafetensorsOf(
      entries, storage::ShardMetadata({write.job, write.step, write.numerics_id}));
  return write;
}

TEST_CASE("a checkpoint that lies whole on the disk is answered as committed") {
  Folder folder;
  const auto first = folder.Execute(NewWrite(folder));
  INFO(first.status().ToString());
  REQUIRE(first.ok());
  // Once more, and its shard is not even looked at.
  WriteCheckpoint again = NewWrite(folder);
  std::ofstream(again.uploads.front()) << "no shard";
  const auto second = folder.Execute(again);
  INFO(second.status().ToString());
  REQUIRE(second.ok());
  CHECK(second->SerializeAsString() == first->SerializeAsString());
  CHECK_FALSE(fs::exists(again.uploads.front()));
}

TEST_CASE("what is not that checkpoint, or not whole, is written again") {
  Folder folder;
  const auto first = folder.Execute(NewWrite(folder));
  REQUIRE(first.ok());
  const std::string file = folder.data_dir->Full("checkpoints/job-1/7/optimizer.safetensors");
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-1, std::ios::end);
  damaged.put('x');
  damaged.close();
  const auto second = folder.Execute(NewWrite(folder));
  REQUIRE(second.ok());
  CHECK(second->SerializeAsString() == first->SerializeAsString());
  CHECK(storage::OpenCheckpoint(storage::RealFiles(), folder.data_dir->Full("checkpoints/job-1/7"),
                                /*verify=*/true)
            .ok());
  const auto other = folder.Execute(NewWrite(folder, "gpu"));
  REQUIRE(other.ok());
  CHECK(other->numerics_id() == "gpu");
  CHECK(storage::OpenCheckpoint(storage::RealFiles(), folder.data_dir->Full("checkpoints/job-1/7"),
                                /*verify=*/false)
            ->state.numerics_id == "gpu");
}

}  // namespace
}  // namespace lorad::server
