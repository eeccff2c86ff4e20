// A job that ends its workers fails, and it alone.
#include "server/core/rules/losses.h"

#include <algorithm>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

TEST_CASE("suspects are parted in halves, then alone") {
  struct Row {
    int32_t losses, company_max, suspects, expected;
  };
  const Row kRows[] = {
      {0, 0, 0, 0},                              // nothing has happened
      {1, 0, 8, 0},                              // once may happen to anybody
      {2, 0, 8, 4}, {2, 0, 7, 3},                // all of a group, as many as there are,
      {2, 0, 2, 1}, {2, 0, 1, 1},                // down to one
      {3, 4, 4, 2}, {4, 2, 2, 1}, {5, 1, 1, 1},  // halves of halves
      {3, 4, 1, 1},                              // it was the only suspect
      {3, 4, 9, 2},                              // others have come to it meanwhile
      {7, 1, 3, 1},
  };
  for (const Row& row : kRows) {
    CAPTURE(row.losses, row.company_max, row.suspects);
    CHECK(CompanyAfterLoss(row.losses, row.company_max, row.suspects) == row.expected);
  }
}

TEST_CASE("only who was alone, and often enough, is to blame") {
  struct Row {
    int32_t losses, redone, losses_alone;
    int64_t jobs;
    bool to_blame;
  };
  const Row kRows[] = {
      {4, 0, 2, 1, false},
      {5, 0, 3, 1, true},
      {9, 0, 3, 1, true},
      {9, 0, 2, 1, false},
      {5, 0, 3, 2, false},
      {9, 0, 9, 8, false},
      // At what it had done before, four times as often.
      {5, 5, 0, 1, false},
      {6, 2, 3, 1, false},
      {7, 2, 3, 1, true},
      {19, 19, 0, 1, false},
      {20, 20, 0, 1, true},
      {20, 20, 0, 2, false},
  };
  for (const Row& row : kRows) {
    CAPTURE(row.losses, row.redone, row.losses_alone, row.jobs);
    CHECK(IsToBlame(row.losses, row.redone, row.losses_alone, 5, row.jobs) == row.to_blame);
  }
  CHECK(AloneAfterLoss(2, 1));
  CHECK_FALSE(AloneAfterLoss(5, 2));  // not the only suspect
  CHECK_FALSE(AloneAfterLoss(1, 0));
}

// ---- stories ----

int64_t Losses(World& world) { return CountNotes(world, "is gone: killed by signal 9"); }

Job LongJob() {
  Job job = World::NewJob();
  job.mutable_training()->set_epochs(20);
  job.mutable_training()->set_checkpoint_every_steps(7);
  return job;
}

struct Company {
  std::vector<std::string> innocent;
  std::string killer;
};

// So many jobs in one queue, one of which ends every worker that steps it.
Company SubmitCompany(World& world, int jobs, int killer) {
  Company company;
  for (int i = 0; i < jobs; ++i) {
    const std::string job = world.Submit(LongJob());
    i == killer ? company.killer = job : company.innocent.emplace_back(job);
  }
  world.script().deadly.insert(company.killer);
  return company;
}

void CheckOnlyTheKillerFailed(World& world, const Company& company) {
  CHECK(world.StateOf(company.killer) == Job::FAILED);
  CHECK(world.Job(company.killer).error().category() == v1::JobError::SERVER);
  CHECK(world.Job(company.killer).error().reason() == "WORKER_LOST");
  for (const std::string& job : company.innocent) CHECK(world.StateOf(job) == Job::SUCCEEDED);
  world.CheckInvariants();
}

bool AllEnded(World& world, const Company& company) {
  return !IsLive(world.StateOf(company.killer)) &&
         std::ranges::none_of(company.innocent,
                              [&](const std::string& job) { return IsLive(world.StateOf(job)); });
}

TEST_CASE("one of eight ends its worker whenever it steps: it fails, the others succeed") {
  for (const int killer : {0, 3, 7}) {
    for (const int workers : {1, 2, 3}) {
      CAPTURE(killer, workers);
      WorldOptions options;
      options.workers = workers;
      options.delay_us_max = 2000;
      auto world = MakeWorld(options);
      const Company company = SubmitCompany(*world, 8, killer);
      world->Settle();
      world->StartWorkers();
      world->RunUntil([&] { return AllEnded(*world, company); });
      CheckOnlyTheKillerFailed(*world, company);
      CHECK(Losses(*world) >= 5);
      // Twice all of them, thrice for the halves, and then the killer alone.
      CHECK(Losses(*world) <= 10);
    }
  }
}

TEST_CASE("a model that ends every worker fails all of its jobs, and no other's") {
  auto world = MakeWorld();
  world->StartWorkers();
  std::vector<std::string> deadly;
  for (int i = 0; i < 4; ++i) {
    deadly.push_back(world->Submit(LongJob()));
    world->script().deadly.insert(deadly.back());
  }
  Job other = LongJob();
  other.set_base_model("m2");
  const std::string innocent = world->Submit(other);
  world->RunUntilState(innocent, Job::SUCCEEDED);
  for (const std::string& job : deadly) {
    world->RunUntil([&] { return !IsLive(world->StateOf(job)); });
    CHECK(world->StateOf(job) == Job::FAILED);
  }
  CHECK(Losses(*world) <= 20);
}

TEST_CASE("jobs that come later are not held up by those that are tried") {
  auto world = MakeWorld();
  const Company company = SubmitCompany(*world, 4, 2);
  world->Settle();
  world->StartWorkers();
  world->RunUntil([&] { return Losses(*world) == 2; });
  const std::string fresh = world->Submit(World::NewJob());
  world->RunUntilState(fresh, Job::SUCCEEDED);
  for (const std::string& job : company.innocent) CHECK(IsLive(world->StateOf(job)));
  world->RunUntil([&] { return AllEnded(*world, company); });
  CheckOnlyTheKillerFailed(*world, company);
}

TEST_CASE("suspicion outlives the coordinator") {
  auto world = MakeWorld();
  const Company company = SubmitCompany(*world, 4, 3);
  world->Settle();
  world->StartWorkers();
  for (int64_t losses = 1; losses <= 4; ++losses) {
    world->RunUntil([&] { return Losses(*world) >= losses; });
    world->Settle();
    world->CrashCoordinator();
  }
  world->RunUntil([&] { return AllEnded(*world, company); });
  CheckOnlyTheKillerFailed(*world, company);
  CHECK(Losses(*world) <= 10);
}

TEST_CASE("a minute of dying workers and coordinators fails nobody") {
  auto world = MakeWorld();
  const std::string job = world->Submit(LongJob());
  world->Settle();
  world->StartWorkers();
  const int64_t begin_us = world->now_us();
  int losses = 0;
  while (world->now_us() - begin_us < 60'000'000) {
    if (world->StateOf(job) == Job::PREPARING) {
      world->worker(0).Kill();
      world->RunUntil([&] { return world->StateOf(job) == Job::QUEUED; });
      world->CrashCoordinator();
      ++losses;
    }
    const int64_t now_us = world->now_us();
    world->RunUntil([&] {
      return world->StateOf(job) == Job::PREPARING || world->now_us() - now_us > 1'000'000;
    });
    REQUIRE(IsLive(world->StateOf(job)));
  }
  // Two at once, and then one after each pause: of 10, 20 and 40 seconds.
  CHECK(losses >= 3);
  CHECK(losses <= 5);
  world->RunUntilState(job, Job::SUCCEEDED);
}

TEST_CASE("workers that die four times by chance fail nobody") {
  auto world = MakeWorld();
  std::vector<std::string> jobs;
  for (int i = 0; i < 6; ++i) jobs.push_back(world->Submit(LongJob()));
  world->Settle();
  world->StartWorkers();
  for (int i = 0; i < 4; ++i) {
    world->RunUntil([&] {
      return std::ranges::any_of(
          jobs, [&](const std::string& job) { return world->StateOf(job) == Job::PREPARING; });
    });
    world->worker(0).Kill();
    world->RunUntil([&] {
      return std::ranges::none_of(
          jobs, [&](const std::string& job) { return world->StateOf(job) == Job::PREPARING; });
    });
  }
  for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("workers that die while a job does again what it has done fail nobody") {
  auto world = MakeWorld();
  Job long_job = LongJob();
  long_job.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(long_job);
  world->StartWorkers();
  const auto lose_at = [&](int64_t step) {
    world->RunUntil([&] { return world->Job(job).step() == step; });
    world->worker(0).Kill();
    world->RunUntilState(job, Job::QUEUED);
  };
  lose_at(40);
  for (int i = 0; i < 12; ++i) lose_at(1 + i);
  lose_at(41);
  for (int i = 0; i < 12; ++i) lose_at(20);
  // One that ends all its workers there fails in the end.
  world->script().deadly.insert(job);
  world->RunUntil([&] { return !IsLive(world->StateOf(job)); });
  CHECK(world->StateOf(job) == Job::FAILED);
  CHECK(Losses(*world) == 14 + 20);
}

TEST_CASE("jobs that lose their workers before they have done a step wait longer each time") {
  auto world = MakeWorld();
  std::vector<std::string> jobs;
  for (int i = 0; i < 64; ++i) jobs.push_back(world->Submit(LongJob()));
  const std::string& job = jobs.front();
  world->Settle();
  world->StartWorkers();
  const auto lose = [&] {
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Kill();
    world->RunUntilState(job, Job::QUEUED);
    return world->now_us();
  };
  // Once may happen to anybody; then they are many suspects, none of them alone.
  lose();
  CHECK(world->Job(job).queue().why().find("tried again at") == std::string::npos);
  for (const int64_t seconds : {1, 2, 4}) {
    const int64_t lost_us = lose();
    const std::string why = world->Job(job).queue().why();
    CHECK(why.starts_with("WORKER_LOST: "));
    CHECK(why.find("tried again at") != std::string::npos);
    world->RunUntilState(job, Job::PREPARING);
    CHECK(world->now_us() - lost_us >= seconds * 1'000'000);
    CHECK(world->now_us() - lost_us < (seconds + 1) * 1'000'000);
  }
  // A step of its own, and it starts over.
  const int64_t step = world->Job(job).step();
  world->RunUntil([&] { return world->Job(job).step() > step; });
  world->worker(0).Kill();
  world->RunUntilState(job, Job::QUEUED);
  CHECK(world->Job(job).queue().why().find("tried again at") == std::string::npos);
  for (const std::string& one : jobs) world->RunUntilState(one, Job::SUCCEEDED);
  world->CheckInvariants();
}

// Losses in company follow each other within seconds, and each waits longer than the one before.
TEST_CASE("workers that are ended for a minute, whenever they form a group, fail nobody") {
  for (const int company : {1, 2, 4, 7}) {
    CAPTURE(company);
    auto world = MakeWorld();
    std::vector<std::string> jobs;
    for (int i = 0; i < company; ++i) jobs.push_back(world->Submit(LongJob()));
    world->Settle();
    world->StartWorkers();
    const auto forms = [&] {
      return std::ranges::any_of(
          jobs, [&](const std::string& job) { return world->StateOf(job) == Job::PREPARING; });
    };
    world->RunUntil(forms);
    const int64_t end_us = world->now_us() + 60'000'000;
    while (world->now_us() < end_us) {
      world->worker(0).Kill();
      world->RunUntil([&] { return !forms(); });
      world->RunUntil(forms);
    }
    for (const std::string& job : jobs) world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(CountNotes(*world, "is gone") >= 3);
    world->CheckInvariants();
  }
}

TEST_CASE("a job whose workers die again and again without a step fails, by us") {
  WorldOptions options;
  options.core.losses_without_progress_max = 3;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  for (int i = 0; i < 3; ++i) {
    world->RunUntilState(job, Job::PREPARING);
    world->worker(0).Kill();
    world->RunUntil([&] { return world->StateOf(job) != Job::PREPARING; });
  }
  CHECK(world->StateOf(job) == Job::FAILED);
  CHECK(world->Job(job).error().category() == v1::JobError::SERVER);
  CHECK(world->Job(job).error().reason() == "WORKER_LOST");
}

TEST_CASE("progress wipes the count of losses") {
  WorldOptions options;
  options.core.losses_without_progress_max = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(4);
  const std::string job = world->Submit(content);
  for (int64_t step : {2, 4, 6}) {
    world->RunUntil([&] { return world->Job(job).step() > step; });
    world->worker(0).Kill();
  }
  world->RunUntilState(job, Job::SUCCEEDED);
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
