// What the daemon's log says of jobs, as stories.
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

// What the log says of the job from there on, without its title.
std::vector<std::string> SaidOf(World& world, const Job& job, size_t from = 0) {
  const std::string title = absl::StrCat(
      "job ", job.name(),
      job.display_name().empty() ? "" : absl::StrCat(" (", job.display_name(), ")"), ": ");
  std::vector<std::string> said;
  for (size_t i = from; i < world.notes().size(); ++i) {
    const std::string& note = world.notes()[i];
    if (note.starts_with(title)) said.push_back(note.substr(title.size()));
  }
  return said;
}

TEST_CASE("the log names a job that is created, waits, starts and ends, a line each") {
  auto world = MakeWorld();
  Job content = World::NewJob();
  content.set_display_name("sums of \xe6\x95\xb0\xe5\xad\xa6");
  const std::string name = world->Submit(content);
  world->Sleep(30'000'000);
  const Job job = world->Job(name);
  const std::string why = job.queue().why();
  REQUIRE_FALSE(why.empty());
  CHECK(SaidOf(*world, job) ==
        std::vector<std::string>{"created, of base model 'm'", absl::StrCat("waits: ", why)});
  world->StartWorkers();
  world->RunUntilState(name, Job::SUCCEEDED);
  const std::vector<std::string> said = SaidOf(*world, job);
  REQUIRE(said.size() == 4);
  CHECK(said[2] == "started on worker 'worker-0': runs in group-1 from step 0");
  CHECK(said[3].starts_with("SUCCEEDED at step 6 of 6: "));
  CHECK(CountNotes(*world, "\n") == 0);
}

TEST_CASE("the log says why a job has failed, is cancelled, or waits again, and at which step") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string lost = world->Submit(World::NewJob());
  world->RunUntil([&] { return world->Job(lost).step() >= 3; });
  world->worker(0).Kill();
  world->RunUntilState(lost, Job::SUCCEEDED);
  const auto said = SaidOf(*world, world->Job(lost));
  CHECK(std::ranges::count(said, "waits again, at step 2 of 6: group-1 is no more") == 1);
  CHECK(std::ranges::count_if(
            said, [](const std::string& line) { return line.starts_with("started on "); }) == 2);

  world->AddDataset("bad", 12);
  world->SpoilRows("bad", 7);
  Job content = World::NewJob();
  content.set_training_dataset("bad");
  const std::string failed = world->Submit(content);
  world->RunUntilState(failed, Job::FAILED);
  const Job job = world->Job(failed);
  CHECK(SaidOf(*world, job).back() ==
        absl::StrCat("FAILED at step 0: ", job.error().reason(), ": ", job.error().message()));

  const std::string cancelled = world->Submit(World::NewJob());
  world->RunUntil([&] { return world->Job(cancelled).step() >= 1; });
  world->Get<Job>(Named<v1::CancelJobRequest>(cancelled));
  world->RunUntilState(cancelled, Job::CANCELLED);
  CHECK(SaidOf(*world, world->Job(cancelled)).back().starts_with("CANCELLED at step "));
}

TEST_CASE("the log says why a job waits again, though it has waited for that before") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  v1::DrainWorkerRequest drain;
  drain.set_name("worker-0");
  drain.set_reason("a new driver");
  world->Get<v1::Worker>(drain);
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(10'000);
  const std::string name = world->Submit(content);
  world->Sleep(30'000'000);
  world->Get<v1::Worker>(Named<v1::UndrainWorkerRequest>("worker-0"));
  world->RunUntilState(name, Job::RUNNING);
  world->Get<v1::Worker>(drain);
  world->RunUntilState(name, Job::QUEUED);
  world->Sleep(30'000'000);
  const auto said = SaidOf(*world, world->Job(name));
  INFO(absl::StrJoin(said, "\n"));
  CHECK(std::ranges::count(said, "waits: worker 'worker-0' is drained (a new driver)") == 2);
}

TEST_CASE("the log has memory in GiB") {
  auto world = MakeWorld();
  world->Connect(HelloOf("large", (int64_t{29} << 30) / 10));
  world->Connect(HelloOf("small", int64_t{300} << 20));
  world->Sleep(1'000'000);
  CHECK(CountNotes(*world, "worker 'large' connected: cpu, 2 threads, 2.9 GiB") == 1);
  CHECK(CountNotes(*world, "worker 'small' connected: cpu, 2 threads, 300 MiB") == 1);
}

TEST_CASE("a reason of which the numbers alone change is said once") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  const std::string job = world->Submit(World::NewJob());
  worker::v1::WorkerMessage failed;
  failed.mutable_report()->mutable_group_failed()->set_reason("MODEL_NOT_FOUND");
  failed.mutable_report()->mutable_group_failed()->set_message("there is no config.json");
  std::set<std::string> whys;
  for (int i = 0; i < 5; ++i) {
    world->RunUntilState(job, Job::PREPARING);
    world->Settle();
    world->worker(0).Lie(failed);
    world->RunUntilState(job, Job::QUEUED);
    world->worker(0).Hang(true);
    whys.insert(world->Job(job).queue().why());
    world->Sleep(2'000'000);
  }
  CHECK(whys.size() ==
        5);  // "... (3 times); tried again at 12:00:05": once with times, once without
  CHECK(CountNotes(*world, ": waits: MODEL_NOT_FOUND: there is no config.json") == 2);
}

// 600 jobs at a worker that has room for few: every one has its few lines, though reasons change with
// each turn, and no second has many.
TEST_CASE("a crowd that waits does not flood the log") {
  constexpr int kJobs = 600;
  auto world = MakeWorld();
  std::vector<std::string> names;
  for (int i = 0; i < kJobs; ++i) {
    Job content = World::NewJob();
    content.set_priority(i % 7);
    content.mutable_adapter()->set_rank(4 << (i % 4));
    names.push_back(world->Submit(content));
  }
  CHECK(CountNotes(*world, ": created, ") == kJobs);
  const auto waits = [&] { return CountNotes(*world, ": waits: "); };
  for (int64_t before = waits(), second = 0; second < 20; ++second) {
    world->Sleep(1'000'000);
    CHECK(waits() - before <= 2 * 64);  // a look is made each second, or a little later
    before = waits();
  }
  CHECK(waits() >= kJobs / 2);
  world->StartWorkers();
  world->RunUntil(
      [&] {
        return std::ranges::all_of(
            names, [&](const std::string& name) { return world->StateOf(name) == Job::SUCCEEDED; });
      },
      10'000'000);
  for (const std::string& name : names) {
    const std::vector<std::string> said = SaidOf(*world, world->Job(name));
    INFO(absl::StrCat(name, " has ", said.size(), " lines, the last: ", said.back()));
    CHECK(said.front().starts_with("created"));
    CHECK(said.back().starts_with("SUCCEEDED"));
    CHECK(said.size() <= 12);
    std::set<std::string> kinds;
    for (std::string line : said) {
      if (!line.starts_with("waits: ")) continue;
      std::erase_if(line, absl::ascii_isdigit);
      CHECK(kinds.insert(line).second);
    }
  }
}

}  // namespace
}  // namespace lorad::server
