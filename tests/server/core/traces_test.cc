// What groups have done, as it is shown.
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

v1::GetTraceRequest TraceOf(const std::string& job, int microbatches = 0) {
  v1::GetTraceRequest request;
  request.set_job(job);
  request.set_microbatches(microbatches);
  return request;
}

v1::ClusterStatus Cluster(World& world) {
  return world.Get<v1::ClusterStatus>(v1::GetClusterRequest());
}

// A job that has trained for a while; each microbatch was computed for 2 of 4 ms (SimEngine).
std::string Train(World& world) {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(30);
  const std::string name = world.Submit(job);
  world.RunUntil([&] { return world.Job(name).step() >= 9; });
  return name;
}

TEST_CASE("a group shows its stages, their shares and its bubble") {
  auto world = MakeWorld();
  world->StartWorkers();
  Train(*world);
  const v1::ClusterStatus cluster = Cluster(*world);
  REQUIRE(cluster.groups_size() == 1);
  const v1::Group& group = cluster.groups(0);
  CHECK(group.measured_microbatches() >= 5);
  CHECK(group.bubble_ratio() == Approx(0.5));
  REQUIRE(group.stages_size() == 1);
  const v1::GroupStage& stage = group.stages(0);
  CHECK(stage.worker() == group.workers(0));
  CHECK(stage.first_block() == 0);
  CHECK(stage.end_block() > 0);
  CHECK(stage.reserved_bytes() == group.reserved_bytes());
  CHECK(stage.busy() == Approx(0.5));
  CHECK(stage.waiting() == Approx(0.5));
  CHECK(stage.transfer() == 0);
}

TEST_CASE("a worker shows its stage, and its memory once it has said so") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  const auto idle = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0);
  CHECK(idle.stages() == 0);
  Train(*world);
  const auto busy = world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers(0);
  CHECK(busy.stage() == 0);
  CHECK(busy.stages() == 1);
  CHECK(busy.resident_bytes() > 0);
}

TEST_CASE("a trace has the newest microbatches, and whose they are") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = Train(*world);
  const auto measured = world->Get<MeasuredGroup>(TraceOf(job, 4));
  REQUIRE(measured.stages.size() == 1);
  REQUIRE(measured.stages[0].size() == 4);
  REQUIRE(measured.trace.microbatches_size() == 4);
  CHECK(measured.trace.bubble_ratio() == Approx(0.5));
  for (int i = 0; i < 4; ++i) {
    const v1::Trace::Microbatch& microbatch = measured.trace.microbatches(i);
    CHECK(microbatch.number() == measured.stages[0][static_cast<size_t>(i)].number);
    CHECK(microbatch.tokens() > 0);
    REQUIRE(microbatch.jobs_size() == 1);
    CHECK(microbatch.jobs(0) == job);
  }
  CHECK(world->Get<MeasuredGroup>(TraceOf(job)).stages[0].size() > 4);
}

TEST_CASE("no trace of a job that does not train") {
  auto world = MakeWorld();
  CHECK(Reason(world->Call(TraceOf("job-none")).status()) == "JOB_NOT_FOUND");
  const std::string job = world->Submit(World::NewJob());
  CHECK(Reason(world->Call(TraceOf(job)).status()) == "JOB_NOT_TRAINING");
  world->StartWorkers();
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(Reason(world->Call(TraceOf(job)).status()) == "JOB_NOT_TRAINING");
}

TEST_CASE("a group that is formed again has no moments of the one before") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = Train(*world);
  const int64_t before = Cluster(*world).groups(0).epoch();
  world->worker(0).Kill();
  world->RunUntilState(job, Job::QUEUED);
  world->RunUntil([&] {
    const v1::ClusterStatus cluster = Cluster(*world);
    return cluster.groups_size() == 1 && cluster.groups(0).epoch() > before;
  });
  CHECK(Cluster(*world).groups(0).measured_microbatches() == 0);
}

}  // namespace
}  // namespace lorad::server
