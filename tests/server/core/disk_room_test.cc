// A disk that runs out of room, as stories.
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
constexpr int64_t kMiB = int64_t{1} << 20;

TEST_CASE("without room creates are refused with the numbers; reads, cancels and deletes work") {
  auto world = MakeWorld();
  const std::string first = world->Submit(World::NewJob());
  const std::string kept = world->Submit(World::NewJob(), "id-1");
  world->SetRoom(3 * kMiB, 80 * kMiB);
  world->Settle();
  CreateJob create;
  create.job = World::NewJob();
  for (const Request& request : {Request(create), Request(RegisterModel{}),
                                 Request(CreateDataset{}), Request(ImportAdapter{})}) {
    const absl::Status refused = world->Call(request).status();
    CAPTURE(request.index(), refused.ToString());
    CHECK(absl::IsResourceExhausted(refused));
    CHECK(Reason(refused) == "DISK_FULL");
    CHECK(refused.message().find("3 MiB free, and 80 MiB are wanted") != std::string::npos);
    CHECK(refused.message().find("/data") != std::string::npos);
  }
  // What was acknowledged is, whatever the disk has.
  CHECK(world->Submit(World::NewJob(), "id-1") == kept);
  CHECK(world->Job(first).queue().why().find("3 MiB free") != std::string::npos);
  CHECK(world->Get<Job>(Named<v1::CancelJobRequest>(first)).state() == Job::CANCELLED);
  CHECK(world->Call(Named<v1::DeleteJobRequest>(first)).ok());
}

TEST_CASE("without room nothing new is planned, and all goes on by itself once there is") {
  auto world = MakeWorld();
  world->StartWorkers();
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(200);
  const std::string runs = world->Submit(job);
  const std::string cancelled = world->Submit(job);
  world->RunUntil(
      [&] { return world->Job(runs).step() >= 3 && world->Job(cancelled).step() >= 1; });
  world->SetRoom(0, 80 * kMiB);
  world->Settle();
  const int64_t step = world->Job(runs).step();
  const size_t plans = world->plans().size();
  world->Sleep(120'000'000);
  CHECK(world->plans().size() == plans);
  CHECK(world->Job(runs).step() == step);
  CHECK(world->StateOf(runs) == Job::RUNNING);
  CHECK(HasEvent(*world, runs, "DISK_FULL"));
  // It says so wherever it is shown, with no speed and no end.
  const std::string no_room = "the disk of /data has 0 KiB free";
  v1::ListJobsRequest summaries;
  summaries.set_view(v1::ListJobsRequest::SUMMARY);
  summaries.set_filter("state = RUNNING");
  const auto listed = world->Get<v1::ListJobsResponse>(summaries);
  REQUIRE(listed.jobs_size() == 2);
  const auto announced = [&](const std::string& name) {
    for (auto news = world->announced().rbegin(); news != world->announced().rend(); ++news) {
      if (news->job().name() == name) return news->job();
    }
    return Job();
  };
  for (const Job& shown : {world->Job(runs), announced(runs), listed.jobs(0), listed.jobs(1)}) {
    CHECK_THAT(shown.stalled(), Catch::StartsWith(no_room));
    CHECK(shown.tokens_per_second() == 0);
    CHECK_FALSE(shown.has_seconds_left());
  }
  const auto cluster = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
  REQUIRE(cluster.warnings_size() == 1);
  CHECK_THAT(cluster.warnings(0), Catch::StartsWith(no_room));
  CHECK(cluster.groups(0).tokens_per_second() == 0);
  // A job that is cancelled leaves its group all the same.
  REQUIRE(world->Call(Named<v1::CancelJobRequest>(cancelled)).ok());
  world->RunUntilState(cancelled, Job::CANCELLED);
  world->Settle();
  CHECK(world->Job(runs).packed_with() == 0);
  world->SetRoom(100 * kMiB, 80 * kMiB);
  world->Sleep(1);
  CHECK(world->Job(runs).stalled().empty());
  CHECK(world->Job(runs).tokens_per_second() == 0);  // nothing was measured since
  CHECK_FALSE(world->Job(runs).has_seconds_left());
  CHECK(announced(runs).stalled().empty());
  CHECK(world->Get<v1::ClusterStatus>(v1::GetClusterRequest()).warnings_size() == 0);
  world->RunUntilState(runs, Job::SUCCEEDED);
  CHECK(world->Job(runs).attempts() == 1);
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
