// A slot that some stages of a model can load and others cannot: told by each, of no harm to its
// neighbours, and freed on all of them.
#include <catch2/catch.hpp>
#include <filesystem>
#include <map>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"

namespace lorad::worker {
namespace {

Harness::Options ThreeStages() {
  return {.model_path = MakeRandomModel(std::filesystem::temp_directory_path() / "stages_slots"),
          .threads = 1,
          .capacity_tokens = 128,
          .longest_sequence = 100,
          .cuts = {2, 4},
          .in_flight = 3};
}

TestJob Neighbour() {
  return MakeJob("a", 4, {"q_proj", "down_proj"}, RandomRows(8, 20, 100, 1), 4);
}
TestJob Large() { return MakeJob("large", 64, {"q_proj"}, RandomRows(8, 20, 100, 2), 4); }

std::string NeighbourAlone() {
  Harness harness(ThreeStages());
  harness.Form();
  TestJob job = Neighbour();
  harness.Load(job);
  harness.Step({&job});
  harness.Step({&job}, true);
  return harness.Shard(job);
}

// How many reports of a kind.
std::map<v1::Report::ContentCase, int> Count(const std::vector<v1::Report>& reports) {
  std::map<v1::Report::ContentCase, int> counts;
  for (const v1::Report& report : reports) ++counts[report.content_case()];
  return counts;
}

v1::Window LoadOf(Harness* harness, const TestJob& job) {
  v1::Window window = harness->NewWindow();
  v1::Operation& load = *window.add_operations();
  load = Op(v1::Operation::LOAD_SLOT, job.name(), job.step);
  *load.mutable_slot() = job.spec;
  load.set_content(job.content);
  return window;
}

v1::Window FreeOf(Harness* harness, const TestJob& job) {
  v1::Window window = harness->NewWindow();
  *window.add_operations() = Op(v1::Operation::FREE_SLOT, job.name(), 0);
  return window;
}

TEST_CASE("a slot that fits all stages but one is loaded, fails there, and is freed on all") {
  Harness::Options options = ThreeStages();
  int64_t reserved_bytes = 0;
  {
    Harness harness(options);
    harness.Form();
    reserved_bytes = harness.formed().reserved_bytes();  // the last stage's
  }
  TestJob neighbour = Neighbour();
  TestJob large = Large();
  // Room for the neighbour's slot, 100 KiB at most, and not for the large one's.
  options.budgets = {0, 0, reserved_bytes + 100'000};
  Harness harness(options);
  harness.Form();
  harness.Load(neighbour);
  auto counts = Count(harness.Run(LoadOf(&harness, large)));
  CHECK(counts[v1::Report::kSlotLoaded] == 2);
  CHECK(counts[v1::Report::kSlotFailed] == 1);
  REQUIRE(harness.slot_failed().size() == 1);
  CHECK(harness.slot_failed()[0].reason() == "MEMORY");
  harness.Step({&neighbour, &large});
  counts = Count(harness.Run(FreeOf(&harness, large)));
  CHECK(counts[v1::Report::kSlotFreed] == 3);
  CHECK(harness.not_finite().empty());
  CHECK(harness.steps("large").empty());
  harness.Step({&neighbour}, true);
  CHECK((harness.Shard(neighbour) == NeighbourAlone()));
}

TEST_CASE("a slot whose content no stage can have is freed on all of them") {
  Harness harness(ThreeStages());
  harness.Form();
  TestJob job = Large();
  job.content = "nowhere";
  CHECK(Count(harness.Run(LoadOf(&harness, job)))[v1::Report::kSlotFailed] == 3);
  CHECK(Count(harness.Run(FreeOf(&harness, job)))[v1::Report::kSlotFreed] == 3);
  job.content = "";
  CHECK(Count(harness.Run(LoadOf(&harness, job)))[v1::Report::kSlotLoaded] == 3);
}

}  // namespace
}  // namespace lorad::worker
