#include "planner/scenario/pack.h"
#include "planner/scenario/subcommand.h"

namespace lorad::planner::scenario {

const std::vector<Subcommand>& Subcommands() {
  static const std::vector<Subcommand> subcommands = {
      {"pack", "sequences of several adapters into microbatches", CheckPack, RunPack},
  };
  return subcommands;
}

}  // namespace lorad::planner::scenario
