// What users ask of a job while its group is away: the coordinator was killed, and the group is
// awaited (docs/adr/0028-groups-are-found-again.md).
#include "tests/server/core/adoption.h"

namespace lorad::server {
namespace {

template <class Request>
void Order(World& world, const std::string& name) {
  REQUIRE(world.Call(Named<Request>(name)).ok());
}

TEST_CASE("a job that is cancelled while its group is away is cut out of it") {
  const auto [world, job] = MakeRunning();
  const std::string other = world->Submit(LongJob());
  RunUntilStep(*world, job, 4);
  RunUntilStep(*world, other, 4);
  world->CrashCoordinator();
  Order<v1::CancelJobRequest>(*world, job);
  CHECK(world->StateOf(job) == Job::CANCELLING);
  world->RunUntilState(job, Job::CANCELLED);
  world->RunUntilState(other, Job::SUCCEEDED);
  CheckWentOn(*world, other);
  world->CheckInvariants();
}

TEST_CASE("a job that was being cancelled is cancelled, and its group comes back without it") {
  const auto [world, job] = MakeRunning(3, 2000);
  const std::string other = world->Submit(LongJob());
  RunUntilStep(*world, job, 4);
  RunUntilStep(*world, other, 4);
  Order<v1::CancelJobRequest>(*world, job);
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::CANCELLED);
  Order<v1::DeleteJobRequest>(*world, job);
  world->RunUntilState(other, Job::SUCCEEDED);
  CheckWentOn(*world, other);
  world->CheckInvariants();
}

TEST_CASE("a job that is paused, or whose worker is drained, meanwhile leaves its group saved") {
  for (const bool drains : {false, true}) {
    const auto [world, job] = MakeRunning();
    RunUntilStep(*world, job, 4);
    world->CrashCoordinator();
    if (drains) {
      Order<v1::DrainWorkerRequest>(*world, "worker-0");
    } else {
      Order<v1::PauseJobRequest>(*world, job);
    }
    world->RunUntilState(job, drains ? Job::QUEUED : Job::PAUSED);
    CHECK(world->Job(job).step() >= 4);
    CHECK(HasEvent(*world, job, "GROUP_ADOPTED"));
    if (drains) {
      Order<v1::UndrainWorkerRequest>(*world, "worker-0");
    } else {
      Order<v1::ResumeJobRequest>(*world, job);
    }
    world->RunUntilState(job, Job::SUCCEEDED);
    world->CheckInvariants();
  }
}

TEST_CASE("a job that was yet to leave its group gets no other one while that is away") {
  const auto [world, job] = MakeRunning(1, 0, /*workers=*/2);
  RunUntilStep(*world, job, 4);
  world->FailRows("train", absl::UnavailableError("its share is away"));
  world->RunUntilState(job, Job::QUEUED);
  const records::GroupRecord record = RecordOfGroup(*world).value();
  REQUIRE(record.members_size() == 1);  // its slot is not free yet
  world->FailRows("train", absl::OkStatus());
  world->CrashCoordinator();
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("a coordinator that is stopped while groups are away waits for none") {
  const auto [world, job, hello] = MakeAbandoned();
  bool stopped = false;
  world->Ask(StopRequested(), [&](const auto&) { stopped = true; });
  world->RunUntil([&] { return stopped; });
  CHECK(world->StateOf(job) == Job::QUEUED);
  CHECK_FALSE(RecordOfGroup(*world).has_value());
}

TEST_CASE("a base model that no job needs may be unregistered while its group is away") {
  auto [world, job] = MakeRunning();
  world->RunUntilState(job, Job::SUCCEEDED);
  Order<v1::DeleteJobRequest>(*world, job);
  world->Settle();
  world->CrashCoordinator();
  Order<v1::UnregisterModelRequest>(*world, "m");
  CHECK_FALSE(RecordOfGroup(*world).has_value());
  world->Sleep(kLeaseUs);
}

}  // namespace
}  // namespace lorad::server
