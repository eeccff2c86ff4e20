// A group that trains, and what is left of it once its coordinator was killed.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {

using Job = v1::Job;

inline constexpr int64_t kLeaseUs = 30'000'000;

inline Job LongJob() {
  Job job = World::NewJob();
  job.mutable_training()->set_max_steps(40);
  job.mutable_training()->set_checkpoint_every_steps(30);
  job.set_validation_dataset("valid");
  job.mutable_training()->set_eval_every_steps(7);
  return job;
}

struct Running {
  std::unique_ptr<World> world;
  std::string job;
};

inline Running MakeRunning(uint64_t seed = 1, int64_t delay_us_max = 0, int workers = 1) {
  WorldOptions options;
  options.seed = seed;
  options.workers = workers;
  options.delay_us_max = delay_us_max;
  options.workers_outlive = true;
  Running running{MakeWorld(options), ""};
  running.world->StartWorkers();
  running.job = running.world->Submit(LongJob());
  return running;
}

inline void RunUntilStep(World& world, const std::string& job, int64_t step) {
  world.RunUntil([&] { return world.Job(job).step() >= step; });
}

inline std::optional<records::GroupRecord> RecordOfGroup(World& world) {
  std::optional<records::GroupRecord> found;
  const absl::Status status =
      world.store().ScanRecords(kGroupKind, [&](std::string_view, std::string_view value) {
        REQUIRE(found.emplace().ParseFromArray(value.data(), static_cast<int>(value.size())));
        return absl::OkStatus();
      });
  REQUIRE(status.ok());
  return found;
}

// It never was back in the queue.
inline void CheckWentOn(World& world, const std::string& job) {
  const std::vector<State> states = StatesOf(world, job);
  CHECK(std::ranges::count(states, Job::PREPARING) == 1);
  CHECK(world.Job(job).attempts() == 1);
}

// The job has fallen back to its beginning, for no checkpoint was due, and ends all the same.
inline void CheckFormedAgain(World& world, const std::string& job, const std::string& why) {
  CHECK(CountNotes(world, why) == 1);
  const Job waits = world.Job(job);
  CHECK(waits.step() == 0);
  CHECK_FALSE(HasEvent(world, job, "GROUP_ADOPTED"));
  CHECK_FALSE(RecordOfGroup(world).has_value());
}

// Its worker is gone, and the coordinator was killed: whoever comes now says what he likes.
struct Abandoned {
  std::unique_ptr<World> world;
  std::string job;
  worker::v1::Hello hello;  // as its worker would say it
};

inline Abandoned MakeAbandoned() {
  auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  const records::GroupRecord record = RecordOfGroup(*world).value();
  worker::v1::Hello hello = world->worker(0).hello();
  hello.set_group(record.group());
  hello.set_epoch(record.epoch());
  hello.set_stage(0);
  hello.set_stages(1);
  hello.set_last_report(record.stages(0).last_report());
  hello.set_last_window(record.next_window() - 1);
  world->CrashCoordinator();
  world->worker(0).Kill(/*restart=*/false);
  return {std::move(world), job, hello};
}

}  // namespace lorad::server
