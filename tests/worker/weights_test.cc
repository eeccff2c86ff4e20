// What a worker keeps of a base model from one group to the next.
#include "worker/engine/weights.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <functional>
#include <optional>

#include "kernels/cpu/cpu_backend.h"
#include "storage/files/errors.h"
#include "storage/files/files.h"
#include "tests/storage/temp_directory.h"
#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "worker/engine/engine.h"
#include "worker/engine/model.h"
#include "worker/host/process.h"

namespace lorad::worker {
namespace {

namespace fs = std::filesystem;

// A model of six blocks whose files a test may change.
class ModelCopy {
 public:
  ModelCopy() { fs::copy("tests/golden/llama_gqa_untied/model", path()); }
  std::string path() const { return folder_ / "model"; }
  // Half of the weights are zero now; sizes and times are as before.
  void Spoil() const {
    const auto time = fs::last_write_time(weights());
    std::string bytes = *storage::RealFiles().ReadAll(weights(), 1 << 26);
    const size_t half = bytes.size() / 2;
    bytes.replace(half, std::string::npos, bytes.size() - half, '\0');
    folder_.Write("model/model.safetensors", bytes);
    fs::last_write_time(weights(), time);
  }
  void Touch() const {
    fs::last_write_time(weights(), fs::last_write_time(weights()) + std::chrono::seconds(1));
  }
  void Truncate() const { fs::resize_file(weights(), fs::file_size(weights()) / 2); }

 private:
  std::string weights() const { return path() + "/model.safetensors"; }
  const storage::TempDirectory folder_;
};

// Does something to the files once they are opened.
struct Meddler : ModelFiles {
  absl::StatusOr<storage::ModelDirectory> Open(const v1::FormGroup& order,
                                               const EngineContext& context) override {
    auto opened = ModelFiles::Open(order, context);
    if (meddle) meddle();
    return opened;
  }
  std::function<void()> meddle;
};

Harness::Options GroupOf(const ModelCopy& model) {
  return {.model_path = model.path(), .threads = 2, .capacity_tokens = 128, .longest_sequence = 60};
}

// What two steps of a job come to in a group of its own.
std::string Train(Harness* harness) {
  TestJob job = MakeJob("a", 4, {"q_proj", "down_proj"}, RandomRows(8, 20, 60, 1), 4);
  harness->Form();
  harness->Load(job);
  harness->Step({&job});
  harness->Step({&job}, true);
  return harness->Shard(job);
}

// Files that are spoiled once all stages of a group have opened them, for which nothing is read
// then: or it would show.
std::shared_ptr<Meddler> SpoiledOnceOpened(const ModelCopy& model, int stages) {
  auto files = std::make_shared<Meddler>();
  files->meddle = [&model, stages, opened = std::make_shared<std::atomic<int>>(0)] {
    if (++*opened == 2 * stages) model.Spoil();
  };
  return files;
}

TEST_CASE("a group of another shape takes the weights as they are: nothing is read") {
  const ModelCopy model;
  Harness::Options options = GroupOf(model);
  options.model_files = SpoiledOnceOpened(model, 1);
  Harness harness(options);
  const std::string loaded = Train(&harness);
  CHECK_FALSE(harness.formed().weights_kept());
  harness.options().capacity_tokens = 300;
  harness.options().longest_sequence = 70;
  harness.options().recomputation = v1::FormGroup::BLOCKS;
  CHECK(Train(&harness) == loaded);
  CHECK(harness.formed().weights_kept());
  // Files of the same size and times are read, for something was done to them.
  CHECK(Train(&harness) != loaded);
  CHECK_FALSE(harness.formed().weights_kept());
}

TEST_CASE("stages take their weights as they are") {
  const ModelCopy model;
  Harness::Options options = GroupOf(model);
  options.cuts = {3};
  options.model_files = SpoiledOnceOpened(model, 2);
  Harness harness(options);
  const std::string loaded = Train(&harness);
  harness.options().in_flight = 2;
  CHECK(Train(&harness) == loaded);
  CHECK(harness.formed().weights_kept());
  CHECK(Train(&harness) != loaded);
  CHECK_FALSE(harness.formed().weights_kept());
}

TEST_CASE("with another cut each stage reads its own blocks") {
  const ModelCopy model;
  Harness::Options options = GroupOf(model);
  options.cuts = {3};
  Harness harness(options);
  const std::string loaded = Train(&harness);
  harness.options().cuts = {2};
  CHECK(Train(&harness) == loaded);
  CHECK_FALSE(harness.formed().weights_kept());
}

// A worker's engines, without the worker.
struct Engines {
  // Of a group that is formed and ends: what it says of that, or why it is not formed.
  absl::StatusOr<v1::GroupFormed> Form(const v1::FormGroup& order) {
    v1::GroupFormed formed;
    EngineContext context;
    context.report = [&formed](const v1::Report& report) { formed = report.group_formed(); };
    const auto engine = maker->Form(order, context);
    if (!engine.ok()) return engine.status();
    return formed;
  }
  bool Keeps(const v1::FormGroup& order) {
    const auto formed = Form(order);
    INFO(formed.status().ToString());
    REQUIRE(formed.ok());
    return formed->weights_kept();
  }

  const std::unique_ptr<kernels::Backend> backend = kernels::MakeCpuBackend(1);
  const std::shared_ptr<Meddler> files = std::make_shared<Meddler>();
  const std::unique_ptr<EngineMaker> maker =
      MakeEngineMaker(backend.get(), {.numerics_id = "id", .model_files = files}, SteadyClock());
};

v1::FormGroup OrderFor(const std::string& path) {
  v1::FormGroup order;
  order.set_model_path(path);
  order.set_stages(1);
  order.set_capacity_tokens(128);
  order.set_longest_sequence(60);
  return order;
}

TEST_CASE("only the same blocks of the same files are kept, and only from group to group") {
  const ModelCopy model;
  const ModelCopy copy;
  Engines engines;
  v1::FormGroup order = OrderFor(model.path());
  CHECK_FALSE(engines.Keeps(order));
  CHECK(engines.Keeps(order));
  CHECK_FALSE(engines.Keeps(OrderFor(copy.path())));
  CHECK_FALSE(engines.Keeps(order));
  CHECK(engines.Keeps(order));
  model.Touch();
  CHECK_FALSE(engines.Keeps(order));
  CHECK(engines.Keeps(order));
  model.Spoil();  // same sizes, same times
  CHECK_FALSE(engines.Keeps(order));
  order.set_stages(2);
  order.set_end_block(3);
  CHECK_FALSE(engines.Keeps(order));
  CHECK(engines.Keeps(order));
  order.set_end_block(2);
  CHECK_FALSE(engines.Keeps(order));
  engines.maker->DropWeights();
  CHECK_FALSE(engines.Keeps(order));
}

TEST_CASE("a group that is not formed leaves nothing to the next one") {
  const ModelCopy model;
  Engines engines;
  const v1::FormGroup order = OrderFor(model.path());
  SECTION("its files changed while they were read") {
    engines.files->meddle = [&] { model.Touch(); };
    CHECK(storage::ReasonOf(engines.Form(order).status()) == "MODEL_CHANGED");
  }
  SECTION("its files end while they are read") {
    const ModelCopy damaged;
    engines.files->meddle = [&] { damaged.Truncate(); };
    CHECK_FALSE(engines.Form(OrderFor(damaged.path())).ok());
  }
  SECTION("there is too little memory, but for the weights") {
    CHECK_FALSE(engines.Keeps(order));
    v1::FormGroup large = order;
    large.set_budget_bytes(1000);
    CHECK(storage::ReasonOf(engines.Form(large).status()) == "MEMORY");
  }
  engines.files->meddle = nullptr;
  CHECK_FALSE(engines.Keeps(order));
  CHECK(engines.Keeps(order));
}

TEST_CASE("kept weights are counted once, and are gone before other memory is taken") {
  const storage::TempDirectory folder;
  const std::string paths[] = {MakeWideRandomModel(folder / "a"),
                               MakeWideRandomModel(folder / "b")};
  Engines engines;
  const auto directory = storage::ModelDirectory::Open(paths[0]);
  REQUIRE(directory.ok());
  const storage::ModelDescription& description = directory->description();
  const int64_t bytes =
      Weights::CountBytes(engines.backend.get(), description, WholeModel(description));
  REQUIRE(bytes > 20'000'000);
  v1::FormGroup order = OrderFor(paths[0]);
  const auto first = engines.Form(order);
  REQUIRE(first.ok());
  CHECK(first->reserved_bytes() ==
        Model::CountBytes(engines.backend.get(), description, WholeModel(description),
                          {.capacity_tokens = 128, .longest_sequence = 60}));
  CHECK(ResidentBytes() > first->baseline_resident_bytes() + bytes / 2);
  // All that the group holds fits the budget, the weights among it.
  order.set_budget_bytes(first->reserved_bytes());
  const auto again = engines.Form(order);
  REQUIRE(again.ok());
  REQUIRE(again->weights_kept());
  CHECK(again->reserved_bytes() == first->reserved_bytes());
  CHECK(again->baseline_resident_bytes() < first->baseline_resident_bytes() + bytes / 2);
  CHECK(again->baseline_resident_bytes() > first->baseline_resident_bytes() - bytes / 2);
  const auto other = engines.Form(OrderFor(paths[1]));
  REQUIRE(other.ok());
  CHECK_FALSE(other->weights_kept());
  CHECK(other->baseline_resident_bytes() < first->baseline_resident_bytes() + bytes / 2);
  CHECK(ResidentBytes() > first->baseline_resident_bytes() + bytes / 2);
  engines.maker->DropWeights();
  CHECK(ResidentBytes() < first->baseline_resident_bytes() + bytes / 2);
}

}  // namespace
}  // namespace lorad::worker
