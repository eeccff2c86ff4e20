// Two workers with a job each, of which one is to notice nothing of the other.
#pragma once

#include <memory>
#include <string>

#include "tests/server/core/scenario.h"

namespace lorad::server {

// Worker 0 trains `job`, with evaluations; worker 1 a job of another base model.
struct Two {
  std::unique_ptr<World> world;
  std::string job, stranger;
};

inline Two MakeTwo(uint64_t seed = 1, int64_t delay_us_max = 0) {
  WorldOptions options;
  options.seed = seed;
  options.workers = 2;
  options.delay_us_max = delay_us_max;
  options.core.losses_without_progress_max = 1'000'000;
  Two two{MakeWorld(options), "", ""};
  two.world->StartWorkers();
  two.world->Settle();
  v1::Job content = World::NewJob();
  content.set_validation_dataset("valid");
  content.mutable_training()->set_eval_every_steps(3);
  two.job = two.world->Submit(content);
  two.world->RunUntilState(two.job, v1::Job::PREPARING);
  content.set_base_model("m2");
  two.stranger = two.world->Submit(content);
  two.world->RunUntilState(two.stranger, v1::Job::PREPARING);
  return two;
}

}  // namespace lorad::server
