#include "planner/scenario/deploy.h"
#include "planner/scenario/dispatch.h"
#include "planner/scenario/fit.h"
#include "planner/scenario/pack.h"
#include "planner/scenario/pipeline.h"
#include "planner/scenario/schedule.h"
#include "planner/scenario/subcommand.h"
#include "planner/scenario/sweep.h"

namespace lorad::planner::scenario {

const std::vector<Subcommand>& Subcommands() {
  static const std::vector<Subcommand> subcommands = {
      {"pack", "sequences of several adapters into microbatches", CheckPack, RunPack},
      {"pipeline", "adapters through a pipeline of stages", CheckPipeline, RunPipeline},
      {"deploy", "replicas of which layouts on the GPUs", CheckDeploy, RunDeploy},
      {"dispatch", "a step's sequences over deployed replicas", CheckDispatchScenario, RunDispatch},
      {"fit", "time and memory models from recorded runs", CheckFit, RunFit},
      {"schedule", "who trains where, in a cluster as it stands or over a history", CheckSchedule,
       RunSchedule},
      {"sweep", "configurations of hyperparameters on shared GPUs", CheckSweep, RunSweep},
  };
  return subcommands;
}

}  // namespace lorad::planner::scenario
