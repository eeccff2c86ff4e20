#include "planner/scenario/pack.h"
#include "planner/scenario/pipeline.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

const std::vector<Subcommand>& Subcommands() {
  static const std::vector<Subcommand> subcommands = {
      {"pack", "sequences of several adapters into microbatches", CheckPack, RunPack},
      {"pipeline", "adapters through a pipeline of stages", CheckPipeline, RunPipeline},
  };
  return subcommands;
}

}  // namespace lorad::planner::scenario
