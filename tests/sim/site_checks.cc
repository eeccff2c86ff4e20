// What must hold in a site, whatever has happened to it.
#include <catch2/catch.hpp>

#include "absl/strings/str_cat.h"
#include "server/core/job_states.h"
#include "server/store_reads.h"
#include "storage/checkpoint.h"
#include "tests/sim/site.h"

namespace lorad::sim {

using namespace server;  // NOLINT: the site is the server's, simulated

// A watcher that comes back after every death: it sees each revision once, in their order.
void Site::CheckTurn() {
  auto revisions = revision_log().Read(watched_, 1000);
  // Who has seen no job yet has nothing to miss.
  while (absl::IsOutOfRange(revisions.status()) && followed_.empty()) {
    revisions = revision_log().Read(++watched_, 1000);
  }
  INFO("seed " << options_.seed << ", watched up to " << watched_ << ": " << revisions.status());
  // What was told and is not there after a death was never durable.
  REQUIRE(revisions.ok());
  for (const auto& revision : *revisions) {
    REQUIRE(revision->revision > watched_);
    watched_ = revision->revision;
    v1::WatchJobsResponse message;
    REQUIRE(message.ParseFromString(revision->message));
    if (message.has_job()) followed_[message.job().name()] = message.job().state();
  }
}

void Site::CheckJob(const v1::Job& job) {
  const std::string& name = job.name();
  INFO("seed " << options_.seed << ", job " << job.ShortDebugString());
  v1::Job::State state = v1::Job::VALIDATING;
  v1::ListEventsRequest events;
  events.set_job(name);
  events.set_page_size(1000);
  const auto told = ReadEvents(store(), events);
  REQUIRE(told.ok());
  for (const v1::Event& event : told->events()) {
    REQUIRE(event.reason() != "NUMERICS_MISMATCH");
    if (event.reason() != "STATE_CHANGED") continue;
    REQUIRE(event.from_state() == state);
    REQUIRE(IsLegal(event.from_state(), event.to_state()));
    state = event.to_state();
  }
  REQUIRE(state == job.state());
  REQUIRE(followed_[name] == state);
  v1::GetMetricsRequest metrics;
  metrics.set_job(name);
  metrics.set_page_size(1000);
  int64_t step = 0;
  const auto rows = ReadMetrics(store(), metrics);
  REQUIRE(rows.ok());
  for (const v1::StepMetrics& row : rows->steps()) {
    REQUIRE(row.step() == ++step);
    REQUIRE(row.loss() == TrainLoss(name, step));
  }
  v1::ListCheckpointsRequest checkpoints;
  checkpoints.set_job(name);
  checkpoints.set_page_size(1000);
  const auto all = ReadCheckpoints(store(), checkpoints);
  REQUIRE(all.ok());
  for (const v1::Checkpoint& kept : all->checkpoints()) {
    const auto found = storage::OpenCheckpoint(
        files_, absl::StrCat("/data/checkpoints/", name, "/", kept.step()), true);
    INFO("checkpoint " << kept.step() << ": " << found.status());
    REQUIRE(found.ok());
    REQUIRE(found->state.step == kept.step());
  }
  if (job.state() != v1::Job::SUCCEEDED) return;
  REQUIRE(step == job.total_steps());
  REQUIRE(job.step() == step);
  REQUIRE(job.last_checkpoint_step() == step);
}

void Site::CheckAll() {
  v1::ListJobsRequest request;
  request.set_page_size(1000);
  const auto all = std::get<v1::ListJobsResponse>(Call([&]() -> Request { return request; }));
  for (const v1::Job& job : all.jobs()) CheckJob(job);
}

}  // namespace lorad::sim
