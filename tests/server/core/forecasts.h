// Worlds in which jobs wait, and what is foretold of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/server/core/scenario.h"

namespace lorad::server {

using Job = v1::Job;

inline int64_t Micros(const google::protobuf::Timestamp& time) {
  return time.seconds() * 1'000'000 + time.nanos() / 1000;
}

// One worker, and all that is said takes its time.
inline WorldOptions Few() {
  WorldOptions options;
  options.workers = 1;
  options.delay_us_max = 50'000;
  return options;
}

// Of 120 steps.
inline Job LongJob(int priority = 0) {
  Job job = World::NewJob();
  job.set_priority(priority);
  job.mutable_training()->set_epochs(40);
  job.mutable_training()->set_checkpoint_every_steps(0);
  return job;
}

// Jobs of two base models in turn: half of them wait until the other model's are done.
inline std::vector<std::string> SubmitMany(World& world, int count) {
  std::vector<std::string> jobs;
  for (int i = 0; i < count; ++i) {
    Job job = LongJob();
    job.set_base_model(i % 2 == 0 ? "m" : "m2");
    jobs.push_back(world.Submit(job));
  }
  return jobs;
}

inline v1::JobEstimate EstimateOf(World& world, const std::string& name) {
  return world.Get<v1::JobEstimate>(EstimateJob{.name = name});
}

inline void CheckOrder(const v1::Forecast& forecast) {
  CHECK(Micros(forecast.start_earliest()) <= Micros(forecast.start_time()));
  CHECK(Micros(forecast.start_time()) <= Micros(forecast.start_latest()));
  CHECK(Micros(forecast.start_time()) < Micros(forecast.end_time()));
  CHECK(Micros(forecast.end_earliest()) <= Micros(forecast.end_time()));
  CHECK(Micros(forecast.end_time()) <= Micros(forecast.end_latest()));
  CHECK(Micros(forecast.start_earliest()) <= Micros(forecast.end_earliest()));
  CHECK(Micros(forecast.start_latest()) <= Micros(forecast.end_latest()));
}

}  // namespace lorad::server
