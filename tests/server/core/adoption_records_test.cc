// What the store has of a group: without it, or where it does not fit, the group is formed again.
#include "tests/server/core/adoption.h"

namespace lorad::server {
namespace {

TEST_CASE("a group whose record is gone is formed again") {
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  const std::string group = RecordOfGroup(*world).value().group();
  REQUIRE(world->store().Apply({storage::DeleteRecord(kGroupKind, group)}).ok());
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::QUEUED);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK_FALSE(HasEvent(*world, job, "GROUP_ADOPTED"));
  world->CheckInvariants();
}

std::vector<std::string> KeysOfWindows(World& world) {
  std::vector<std::string> keys;
  const absl::Status status =
      world.store().ScanRecords(kWindowKind, [&](std::string_view key, std::string_view) {
        keys.emplace_back(key);
        return absl::OkStatus();
      });
  REQUIRE(status.ok());
  return keys;
}

TEST_CASE("a window is in the store as long as it is at hand") {
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  for (int more = 0; more < 200; ++more) {
    world->RunNext();
    const records::GroupRecord record = RecordOfGroup(*world).value();
    std::vector<std::string> at_hand;
    for (const auto& window : record.stages(0).windows()) {
      at_hand.push_back(absl::StrCat(record.group(), "/0/", window.number()));
    }
    std::ranges::sort(at_hand);  // as the store does
    REQUIRE(KeysOfWindows(*world) == at_hand);
  }
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Settle();
  CHECK(KeysOfWindows(*world).empty());
}

TEST_CASE("a group whose windows are lost is formed again") {
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  std::vector<storage::Mutation> gone;
  for (const std::string& key : KeysOfWindows(*world)) {
    gone.push_back(storage::DeleteRecord(kWindowKind, key));
  }
  REQUIRE_FALSE(gone.empty());
  REQUIRE(world->store().Apply(gone).ok());
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::QUEUED);
  CHECK(CountNotes(*world, "is not what its jobs and workers are") == 1);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a record that does not fit its job is of no use") {
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  records::GroupRecord record = RecordOfGroup(*world).value();
  record.mutable_members(0)->set_done_step(record.members(0).done_step() + 1);
  REQUIRE(world->store()
              .Apply({storage::PutRecord(kGroupKind, record.group(), record.SerializeAsString())})
              .ok());
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::QUEUED);
  CHECK(CountNotes(*world, "is not what its jobs and workers are") == 1);
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a record that is emptied, or of another name, is warned of by its own and removed") {
  const bool emptied = GENERATE(true, false);
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  const records::GroupRecord record = RecordOfGroup(*world).value();
  const std::string key = emptied ? record.group() : "group-77";
  REQUIRE(
      world->store()
          .Apply({storage::DeleteRecord(kGroupKind, record.group()),
                  storage::PutRecord(kGroupKind, key, emptied ? "" : record.SerializeAsString())})
          .ok());
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::QUEUED);
  CHECK(CountNotes(*world, key + " is not what its jobs and workers are") == 1);
  CHECK_FALSE(RecordOfGroup(*world).has_value());
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("microbatches that an older version sent teach no times") {
  WorldOptions options;
  options.workers_outlive = true;
  options.token_ms = 0.5;
  const auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  RunUntilStep(*world, job, 3);
  records::GroupRecord record = RecordOfGroup(*world).value();
  records::GroupRecord::Stage& stage = *record.mutable_stages(0);
  int64_t unknown = 0;
  const auto forget = [&](auto* begun) {
    for (records::GroupRecord::Begun& one : *begun) {
      CHECK(one.tokens() > 0);
      CHECK(one.squared_lengths() > 0);
      CHECK(one.adapter_work() > 0);
      one.clear_tokens();
      one.clear_squared_lengths();
      one.clear_adapter_work();
      ++unknown;
    }
  };
  for (records::GroupRecord::Window& window : *stage.mutable_windows()) {
    forget(window.mutable_begins());
  }
  forget(stage.mutable_microbatches());
  CHECK(unknown > 0);
  REQUIRE(world->store()
              .Apply({storage::PutRecord(kGroupKind, record.group(), record.SerializeAsString())})
              .ok());
  world->CrashCoordinator();
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(HasEvent(*world, job, "GROUP_ADOPTED"));
  const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  const auto of_m = std::ranges::find(cluster.times(), "m", &v1::TrainingTimes::base_model);
  REQUIRE(of_m != cluster.times().end());
  const v1::TrainingTimes& times = *of_m;
  // A microbatch of n tokens takes 2 + n ms, both passes together.
  for (const double tokens : {40.0, 100.0}) {
    const planner::Workload work(tokens, 20 * tokens, 100 * tokens);
    const planner::TimeCoefficients found{.constant_ms = times.constant_ms(),
                                          .token_ms = times.token_ms(),
                                          .squared_ms = times.squared_ms(),
                                          .adapter_ms = times.adapter_ms()};
    CHECK(found.Ms(work, 1) == Approx(2 + tokens).epsilon(0.06));
  }
}

}  // namespace
}  // namespace lorad::server
