// The queue, however long, as stories.
#include "absl/strings/str_cat.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

// Fits the GPUs of the worlds below, and no CPU beside them: 40 lengths, so that each is of a shape
// of its own.
Job Large(int i) {
  Job job = World::NewJob();
  job.set_training_dataset(absl::StrCat("long-", i % 40));
  job.mutable_adapter()->set_rank(512);
  for (const char* target : {"k_proj", "v_proj", "o_proj"}) {
    job.mutable_adapter()->add_target_modules(target);
  }
  job.mutable_training()->set_max_length(1 << 20);
  return job;
}

TEST_CASE("however many wait that fit no worker, a small job behind them does not") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  for (int i = 0; i < 40; ++i) {
    const std::string name = absl::StrCat("long-", i);
    world->SetLongest(name, (1 << 20) - i);
    world->AddDataset(name, 4);
  }
  // Nobody knows yet that there is no worker for them: they are let in.
  std::vector<std::string> large;
  for (int i = 0; i < 300; ++i) large.push_back(world->Submit(Large(i)));
  world->Settle();
  world->StartWorkers();
  const std::string small = world->Submit(World::NewJob());
  world->RunUntilState(small, Job::SUCCEEDED);
  for (const std::string& job : large) REQUIRE(world->StateOf(job) == Job::QUEUED);
  CHECK(world->Job(large[0]).queue().why().find("the largest worker offers") != std::string::npos);
}

TEST_CASE("however many of one user wait, another one's job has its share") {
  WorldOptions options;
  options.core.share_label = "team";
  options.core.policy.fair_share = true;
  auto world = MakeWorld(options);
  const auto submit = [&](const char* team) {
    Job job = World::NewJob();
    (*job.mutable_labels())["team"] = team;
    return world->Submit(job);
  };
  std::string first;
  for (int i = 0; i < 300; ++i) first = i == 0 ? submit("math") : (submit("math"), first);
  const std::string other = submit("art");
  world->StartWorkers();
  world->RunUntil([&] { return world->StateOf(first) == Job::RUNNING; });
  CHECK(world->StateOf(other) != Job::QUEUED);
  world->RunUntilState(other, Job::SUCCEEDED);
}

TEST_CASE("what a quota leaves goes to the next by fair share, as places and forecasts say") {
  const int places = GENERATE(1, 2);
  CAPTURE(places);
  WorldOptions options;
  options.core.share_label = "user";
  options.core.policy.fair_share = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  v1::SetQuotaRequest quota;
  quota.mutable_quota()->set_label("team=x");
  quota.mutable_quota()->set_running_jobs(places);
  world->Get<v1::Quota>(quota);
  const auto submit = [&](const char* user) {
    Job job = World::NewJob();
    job.mutable_training()->set_max_steps(500);
    (*job.mutable_labels())["team"] = "x";
    (*job.mutable_labels())["user"] = user;
    return world->Submit(job);
  };
  const std::string first = submit("ada");
  if (places == 2) submit("ada");
  world->RunUntil([&] { return world->Job(first).step() > 0; });
  const std::string more = submit("ada"), another = submit("ada"), other = submit("bob");
  world->Sleep(1'200'000);
  REQUIRE(world->StateOf(first) == Job::RUNNING);
  const auto place = [&](const std::string& job) { return world->Job(job).queue().place(); };
  CHECK(place(other) == 1);
  CHECK(place(more) == 2);
  CHECK(place(another) == 3);
  const auto waits = [&](const std::string& job) { return world->StateOf(job) == Job::QUEUED; };
  world->RunUntil([&] { return !waits(more) || !waits(another) || !waits(other); });
  CHECK_FALSE(waits(other));
  CHECK(waits(another));
  world->RunUntil([&] { return !waits(another); });
  CHECK_FALSE(waits(more));
}

TEST_CASE("the place that a job shows is where the policy looks at it") {
  WorldOptions options;
  options.core.share_label = "team";
  options.core.policy.fair_share = true;
  auto world = MakeWorld(options);
  const auto submit = [&](const char* team, int priority = 0) {
    Job job = World::NewJob();
    job.set_priority(priority);
    (*job.mutable_labels())["team"] = team;
    return world->Submit(job);
  };
  std::vector<std::string> math;
  for (int i = 0; i < 4; ++i) math.push_back(submit("math"));
  world->Sleep(2'000'000);
  const auto place = [&](const std::string& job) { return world->Job(job).queue().place(); };
  const std::string art = submit("art");
  const std::string urgent = submit("math", 7);
  world->Sleep(2'000'000);
  CHECK(place(urgent) == 1);
  CHECK(place(art) == 2);  // the urgent one counts against its team
  for (int i = 0; i < 4; ++i) CHECK(place(math[i]) == 3 + i);
  // Who watches was told.
  int told = 0;
  for (const auto& change : world->announced()) {
    if (change.job().name() == art) told = change.job().queue().place();
  }
  CHECK(told == 2);
  const std::string late = submit("art", 3);
  CHECK(place(late) == 2);
  CHECK(place(art) == 4);  // now it has one before it, as the first of math has, which came earlier
  // Until the next forecast a newcomer stands behind its priority, and nobody twice.
  const std::string later = submit("art", 3);
  CHECK(place(later) == 3);
  CHECK(place(art) == 5);
  REQUIRE(world->Call(Named<v1::CancelJobRequest>(urgent)).ok());
  CHECK(place(late) == 1);
  CHECK(place(later) == 2);
  world->Sleep(2'000'000);
  CHECK(place(math[2]) == 5);
  CHECK(place(art) == 6);
  CHECK(place(math[3]) == 7);
}

TEST_CASE("jobs of one shape go in their order, and all of them go") {
  auto world = MakeWorld();
  std::vector<std::string> jobs;
  for (int i = 0; i < 300; ++i) jobs.push_back(world->Submit(World::NewJob()));
  CHECK(world->Job(jobs[256]).queue().why() == "behind 256 jobs like it, which come before it");
  CHECK(world->Job(jobs[255]).queue().why() != world->Job(jobs[256]).queue().why());
  world->StartWorkers();
  world->RunUntil([&] { return world->StateOf(jobs[0]) == Job::RUNNING; });
  int64_t placed = 0;
  for (const std::string& job : jobs) placed += world->StateOf(job) != Job::QUEUED;
  CHECK(placed == 256);
  CHECK(world->StateOf(jobs[255]) != Job::QUEUED);
  CHECK(world->StateOf(jobs[256]) == Job::QUEUED);
  world->RunUntilState(jobs.back(), Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
