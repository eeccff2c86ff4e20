// The model's files on a host that is not the coordinator's.
#include "worker/engine/model_files.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "tests/storage/temp_directory.h"

namespace lorad::worker {
namespace {

namespace fs = std::filesystem;
using storage::ModelDirectory;
using storage::ReasonOf;
using Maps = std::vector<PathMap>;

constexpr char kModel[] = "tests/golden/llama_gqa_untied/model";

// The coordinator has a copy of the model in m/, this host one with other times in here/m/.
struct Hosts {
  Hosts() {
    for (const char* to : {"m", "here/m"}) {
      fs::create_directories(folder / to);
      fs::copy(kModel, folder / to);
    }
    const auto weights = folder / "here/m/model.safetensors";
    fs::last_write_time(weights, fs::last_write_time(weights) - std::chrono::hours(5));
    const auto there = ModelDirectory::Open(folder / "m");
    REQUIRE(there.ok());
    for (const std::string& name : there->Parts()) {
      v1::ModelPart part;
      part.set_name(name);
      part.set_sha256(*there->PartSha256(name));
      parts.push_back(part);
    }
    order.set_epoch(7);
    order.set_model_path(folder / "m");
    order.set_model_fingerprint(there->fingerprint());
    context.describe = [this](const v1::DescribeModelRequest& request, int64_t,
                              const std::function<absl::Status(const v1::ModelPart&)>& sink) {
      CHECK(request.epoch() == 7);
      ++described;
      for (const v1::ModelPart& part : parts) {
        if (absl::Status status = sink(part); !status.ok()) return status;
      }
      return absl::OkStatus();
    };
  }

  ModelFiles Mapped() const { return ModelFiles(Maps{{folder.path(), folder / "here"}}); }

  storage::TempDirectory folder;
  v1::FormGroup order;
  EngineContext context;
  std::vector<v1::ModelPart> parts;
  int described = 0;
};

TEST_CASE("files with other times are taken for what they hold, once compared") {
  Hosts hosts;
  ModelFiles same;  // the very files
  CHECK(same.Open(hosts.order, hosts.context).ok());
  CHECK(hosts.described == 0);

  ModelFiles mapped = hosts.Mapped();
  for (int i = 0; i < 2; ++i) {
    const auto opened = mapped.Open(hosts.order, hosts.context);
    INFO(std::string(opened.status().message()));
    REQUIRE(opened.ok());
    CHECK(opened->path() == hosts.folder / "here/m");
    CHECK(opened->fingerprint() != hosts.order.model_fingerprint());
  }
  CHECK(hosts.described == 1);
}

TEST_CASE("files that hold something else are named, with the part that differs") {
  Hosts hosts;
  const std::string weights = hosts.folder / "here/m/model.safetensors";
  std::string bytes = *storage::RealFiles().ReadAll(weights, 1 << 26);
  bytes.back() ^= 1;
  REQUIRE(storage::AtomicWrite(storage::RealFiles(), weights, bytes).ok());
  ModelFiles mapped = hosts.Mapped();
  for (int i = 1; i <= 2; ++i) {  // it may be mended meanwhile
    const absl::Status status = mapped.Open(hosts.order, hosts.context).status();
    CHECK(ReasonOf(status) == "MODEL_DIFFERS");
    INFO(std::string(status.message()));
    CHECK(status.message().find(hosts.folder / "here/m") != std::string::npos);
    CHECK(status.message().find("differs; copy its files again") != std::string::npos);
    CHECK(hosts.described == i);
  }
  bytes.back() ^= 1;
  REQUIRE(storage::AtomicWrite(storage::RealFiles(), weights, bytes).ok());
  CHECK(mapped.Open(hosts.order, hosts.context).ok());

  const std::string config = hosts.folder / "here/m/config.json";
  REQUIRE(storage::AtomicWrite(storage::RealFiles(), config,
                               *storage::RealFiles().ReadAll(config, 1 << 20) + " ")
              .ok());
  const absl::Status other = mapped.Open(hosts.order, hosts.context).status();
  CHECK(ReasonOf(other) == "MODEL_DIFFERS");
  CHECK(other.message().find("\"config.json\" differs") != std::string::npos);
}

TEST_CASE("parts that only one of the hosts has are named") {
  Hosts hosts;
  ModelFiles mapped = hosts.Mapped();
  v1::ModelPart surplus = hosts.parts.back();
  surplus.set_name("model.layers.9.mlp.up_proj.weight");
  hosts.parts.push_back(surplus);
  const absl::Status missing = mapped.Open(hosts.order, hosts.context).status();
  CHECK(missing.message().find("\"model.layers.9.mlp.up_proj.weight\" is missing") !=
        std::string::npos);
  hosts.parts.resize(3);
  CHECK(ReasonOf(mapped.Open(hosts.order, hosts.context).status()) == "MODEL_DIFFERS");
}

TEST_CASE("the coordinator's own word about its files is passed on") {
  Hosts hosts;
  hosts.context.describe = [](const v1::DescribeModelRequest&, int64_t,
                              const std::function<absl::Status(const v1::ModelPart&)>&) {
    return storage::WithReason(absl::StatusCode::kFailedPrecondition, "MODEL_CHANGED", "changed");
  };
  CHECK(ReasonOf(hosts.Mapped().Open(hosts.order, hosts.context).status()) == "MODEL_CHANGED");
}

TEST_CASE("a model that is not on this host says how another path is named") {
  Hosts hosts;
  fs::remove_all(hosts.folder / "here/m");
  const absl::Status status = hosts.Mapped().Open(hosts.order, hosts.context).status();
  CHECK(ReasonOf(status) == "MODEL_NOT_FOUND");
  CHECK(status.message().find(hosts.folder / "here/m") == 0);
  CHECK(status.message().find("lorad-worker --model-map FROM=TO") != std::string::npos);
}

TEST_CASE("paths are mapped by whole names, and the longest map counts") {
  const ModelFiles files(Maps{{"/srv/models", "/data"}, {"/srv/models/big", "/fast"}});
  CHECK(files.PathHere("/srv/models/a/b") == "/data/a/b");
  CHECK(files.PathHere("/srv/models") == "/data");
  CHECK(files.PathHere("/srv/models/big/m") == "/fast/m");
  CHECK(files.PathHere("/srv/models2/m") == "/srv/models2/m");
  CHECK(ModelFiles(Maps{{"/", "/mnt"}}).PathHere("/a") == "/mnt/a");
  CHECK(ModelFiles(Maps{{"/a", "/"}}).PathHere("/a/b") == "/b");
  CHECK(ModelFiles(Maps{{"/a", "/"}}).PathHere("/a") == "/");

  CHECK(*ParsePathMap("/a/=/b//") == PathMap{"/a", "/b"});
  for (const char* wrong : {"", "/a", "=/b", "/a=", "a=/b", "/a=b"}) {
    INFO(wrong);
    CHECK_FALSE(ParsePathMap(wrong).ok());
  }
}

}  // namespace
}  // namespace lorad::worker
