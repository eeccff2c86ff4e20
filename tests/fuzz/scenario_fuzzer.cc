// Any bytes as a scenario: refused with a path for each violation, or read the same again; small
// packings and pipelines are planned too.

#include <cassert>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "planner/scenario/fields.h"
#include "planner/scenario/pack.h"
#include "planner/scenario/pipeline.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {
namespace {

// Each line is a violation's, and names its path.
void CheckRefusal(const absl::Status& status) {
  assert(status.code() == absl::StatusCode::kInvalidArgument);
  assert(status.message().find("$") == 0);
}

bool IsSmall(const PipelineInput& input) {
  size_t sequences = 0;
  for (const PipelineAdapter& adapter : input.adapters) {
    for (const auto& batch : adapter.batches) sequences += batch.size();
  }
  return sequences <= 60 && input.stages <= 8 && input.blocks.size() <= 64;
}

bool IsSmall(const PackScenario& scenario) {
  size_t sequences = 0;
  for (const auto& batch : scenario.batches) sequences += batch.size();
  return sequences <= 60 && scenario.limits.nodes <= 1000000 &&
         scenario.limits.solver == PackSolver::kBinCompletion;
}

void Fuzz(std::string_view text) {
  const auto scenario = ParseScenario(text);
  if (!scenario.ok()) return CheckRefusal(scenario.status());
  for (const Subcommand& command : Subcommands()) {
    const absl::Status status = command.check(*scenario);
    if (!status.ok()) CheckRefusal(status);
    assert(command.check(*scenario) == status);
  }
  if (const auto pack = ReadPack(*scenario); pack.ok() && IsSmall(*pack)) {
    assert(RunPack(*scenario).ok());
  }
  if (auto pipeline = ReadPipeline(*scenario); pipeline.ok() && IsSmall(*pipeline)) {
    pipeline->pack_nodes = 10000;
    const auto plan = PlanPipeline(*pipeline);
    if (plan.ok()) {
      assert(plan->simulation.bubble_ratio >= -1e-6 && plan->simulation.bubble_ratio <= 1);
      ToJson(*plan, *pipeline);
    }
  }
}

}  // namespace
}  // namespace lorad::planner::scenario

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  lorad::planner::scenario::Fuzz({reinterpret_cast<const char*>(data), size});
  return 0;
}
