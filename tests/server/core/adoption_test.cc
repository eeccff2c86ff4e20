// A coordinator that is killed finds groups with their workers again, where what they hold is what
// its store has of them (docs/adr/0028-groups-are-found-again.md).
#include "tests/server/core/adoption.h"

namespace lorad::server {
namespace {

TEST_CASE("a group is found again wherever the coordinator was killed, and no step is lost") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    const auto [world, job] = MakeRunning(seed, seed % 3 * 2000);
    world->RunUntilState(job, Job::RUNNING);
    RunUntilStep(*world, job, static_cast<int64_t>(seed % 25));
    for (uint64_t more = seed * 7 % 40; more > 0; --more) world->RunNext();
    const int64_t step = world->Job(job).step();
    world->CrashCoordinator();
    CHECK(world->Job(job).step() == step);  // as it was told
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(CountEvents(*world, job, "GROUP_ADOPTED") == 1);
    CheckWentOn(*world, job);
    world->CheckInvariants();
  }
}

TEST_CASE("a coordinator may be killed again while groups come back") {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    const auto [world, job] = MakeRunning(seed, 2000);
    world->RunUntilState(job, Job::RUNNING);
    RunUntilStep(*world, job, static_cast<int64_t>(seed % 20));
    for (int deaths = 0; deaths < 4; ++deaths) {
      world->CrashCoordinator();
      for (uint64_t more = seed * 11 % 60; more > 0; --more) world->RunNext();
    }
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(CountEvents(*world, job, "GROUP_ADOPTED") >= 1);
    CheckWentOn(*world, job);
    world->CheckInvariants();
  }
}

TEST_CASE("a group without a job is found again, and takes the next one") {
  auto [world, job] = MakeRunning();
  world->RunUntilState(job, Job::SUCCEEDED);
  world->Settle();
  const std::string group = RecordOfGroup(*world).value().group();
  world->CrashCoordinator();
  world->Sleep(1'000'000);
  job = world->Submit(LongJob());
  world->RunUntilState(job, Job::RUNNING);
  CHECK(world->Job(job).group() == group);
  CHECK(CountNotes(*world, "forming for base model") == 1);
}

TEST_CASE("workers that die with their coordinator leave no record") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  RunUntilStep(*world, job, 3);
  CHECK_FALSE(RecordOfGroup(*world).has_value());
  world->CrashCoordinator();
  CHECK(world->StateOf(job) == Job::QUEUED);
}

// ---- what is not adopted ----

TEST_CASE("what a worker holds is adopted where it is what the store has") {
  const auto [world, job, hello] = MakeAbandoned();
  CHECK(world->StateOf(job) == Job::RUNNING);
  const uint64_t connection = world->Connect(hello);
  world->Settle();
  CHECK(world->IsConnected(connection));
  CHECK(HasEvent(*world, job, "GROUP_ADOPTED"));
  CHECK(world->Job(job).step() >= 5);
}

TEST_CASE("a worker that holds what nobody knows is told so in the log") {
  const auto [world, job, abandoned] = MakeAbandoned();
  worker::v1::Hello hello = abandoned;
  hello.set_worker("stranger");
  hello.set_group("group-9");
  const uint64_t connection = world->Connect(hello);
  world->Settle();
  CHECK(world->IsConnected(connection));
  CHECK(CountNotes(*world, "worker 'stranger' comes with group-9, epoch 1, which is over") == 1);
}

TEST_CASE("a worker that holds anything else is not believed, and the group is formed again") {
  struct Case {
    const char* name;
    void (*change)(worker::v1::Hello& hello);
    const char* why;
  };
  const Case cases[] = {
      {"nothing", [](worker::v1::Hello& m) { m.set_epoch(0); }, "holds nothing"},
      {"an older epoch", [](worker::v1::Hello& m) { m.set_epoch(m.epoch() - 1); }, "holds nothing"},
      {"a newer epoch", [](worker::v1::Hello& m) { m.set_epoch(m.epoch() + 1); },
       "holds another group"},
      {"a group of another name", [](worker::v1::Hello& m) { m.set_group("group-7"); },
       "holds another group"},
      {"another stage", [](worker::v1::Hello& m) { m.set_stage(1); }, "which is not its own"},
      {"a stage of more", [](worker::v1::Hello& m) { m.set_stages(2); }, "which is not its own"},
      {"fewer reports", [](worker::v1::Hello& m) { m.set_last_report(m.last_report() - 1); },
       "numbers its reports"},
      {"a window of the future",
       [](worker::v1::Hello& m) { m.set_last_window(m.last_window() + 1); }, "is behind window"},
      {"fewer windows than it has done", [](worker::v1::Hello& m) { m.set_last_window(0); },
       "is behind window"},
  };
  for (const Case& one : cases) {
    INFO(one.name);
    auto [world, job, hello] = MakeAbandoned();
    one.change(hello);
    world->Connect(hello);
    // The stranger is there now, and takes the job from its beginning.
    world->RunUntil([&] { return CountNotes(*world, "is not adopted") == 1; });
    CheckFormedAgain(*world, job, one.why);
  }
}

TEST_CASE("the name of a worker that is awaited is kept from other processes for a lease") {
  struct Case {
    const char* name;
    void (*change)(worker::v1::Hello& hello);
  };
  const Case cases[] = {
      {"another process", [](worker::v1::Hello& m) { m.set_pid(4711); }},
      {"another process, with nothing",
       [](worker::v1::Hello& m) {
         m.set_pid(4711);
         m.set_epoch(0);
       }},
      {"with other numerics", [](worker::v1::Hello& m) { m.set_numerics_id("other"); }},
      {"on another host", [](worker::v1::Hello& m) { m.set_host("elsewhere"); }},
  };
  for (const Case& one : cases) {
    for (const bool comes_back : {true, false}) {
      INFO(one.name << (comes_back ? ", and the first comes back" : ", and the first is gone"));
      auto [world, job, hello] = MakeAbandoned();
      worker::v1::Hello other = hello;
      one.change(other);
      const uint64_t early = world->Connect(other);
      world->Settle();
      REQUIRE_FALSE(world->IsConnected(early));
      CHECK(Reason(world->closed(early)) == "WORKER_NAME_TAKEN");
      CHECK_THAT(std::string(world->closed(early).message()),
                 Catch::Contains("may still live: it is awaited for 30 s from that"));
      CHECK(world->StateOf(job) == Job::RUNNING);
      if (comes_back) {
        const uint64_t first = world->Connect(hello);
        world->Settle();
        CHECK(world->IsConnected(first));
        CHECK(HasEvent(*world, job, "GROUP_ADOPTED"));
        continue;
      }
      world->Sleep(kLeaseUs + 1'000'000);
      CheckFormedAgain(*world, job, "not all of its workers came back");
      const uint64_t late = world->Connect(other);
      world->Settle();
      CHECK(world->IsConnected(late));
    }
  }
}

TEST_CASE("nobody is kept from the name of a worker that died with its coordinator") {
  auto [world, job, hello] = MakeAbandoned();
  hello.set_worker("own");
  hello.set_epoch(0);
  hello.set_outlives_coordinator(false);
  world->Connect(hello);
  world->Settle();
  world->CrashCoordinator();
  hello.set_pid(4711);
  const uint64_t next = world->Connect(hello);
  world->Settle();
  CHECK(world->IsConnected(next));
}

TEST_CASE("a worker that is not of the group does not get it") {
  auto [world, job, hello] = MakeAbandoned();
  hello.set_worker("other");
  const uint64_t connection = world->Connect(hello);
  world->Settle();
  CHECK(world->IsConnected(connection));
  CHECK_FALSE(HasEvent(*world, job, "GROUP_ADOPTED"));
  CHECK(world->Job(job).step() >= 5);  // its own is awaited
  world->Sleep(kLeaseUs + 1'000'000);
  CheckFormedAgain(*world, job, "not all of its workers came back");
}

TEST_CASE("a worker that comes too late finds its group formed again") {
  auto [world, job, hello] = MakeAbandoned();
  world->Sleep(kLeaseUs - 1'000'000);
  CHECK(world->StateOf(job) == Job::RUNNING);
  CHECK(world->Job(job).stalled() ==
        "group-1 waits for its workers since the coordinator was started");
  world->Sleep(2'000'000);
  CheckFormedAgain(*world, job, "not all of its workers came back within 30000 ms");
  CHECK(world->StateOf(job) == Job::QUEUED);
  world->Connect(hello);
  world->Settle();
  CHECK_FALSE(HasEvent(*world, job, "GROUP_ADOPTED"));
  CHECK(world->StateOf(job) == Job::PREPARING);
}

TEST_CASE("a process that was started again under the name holds nothing") {
  const auto [world, job] = MakeRunning();
  RunUntilStep(*world, job, 5);
  world->CrashCoordinator();
  world->worker(0).Kill(/*restart=*/true);
  world->RunUntilState(job, Job::SUCCEEDED);
  CHECK(CountNotes(*world, "holds nothing") == 1);
  CHECK_FALSE(HasEvent(*world, job, "GROUP_ADOPTED"));
  world->CheckInvariants();
}

// ---- lies of who comes back ----

TEST_CASE("what is said of a group that came back is checked as ever") {
  const auto lie = [](void (*change)(worker::v1::Report & report), const std::string& why) {
    INFO(why);
    const auto [world, job, hello] = MakeAbandoned();
    const records::GroupRecord record = RecordOfGroup(*world).value();
    const uint64_t connection = world->Connect(hello);
    world->Settle();
    REQUIRE(HasEvent(*world, job, "GROUP_ADOPTED"));
    const int64_t step = world->Job(job).step();
    worker::v1::WorkerMessage message;
    worker::v1::Report& report = *message.mutable_report();
    report.set_epoch(record.epoch());
    report.set_number(hello.last_report() + 1);
    worker::v1::StepDone& done = *report.mutable_step_done();
    done.set_job(job);
    done.set_step(step + 1);
    change(report);
    world->Say(connection, message);
    world->Settle();
    CHECK_FALSE(world->IsConnected(connection));
    CHECK_THAT(std::string(world->closed(connection).message()), Catch::Contains(why));
    CHECK(world->Job(job).step() == 0);  // it fell back
  };
  lie([](worker::v1::Report& m) { m.mutable_step_done()->set_tokens(1); }, "does not fit");
  lie([](worker::v1::Report& m) { m.mutable_step_done()->set_step(m.step_done().step() + 1); },
      "does not fit");
  lie([](worker::v1::Report& m) { m.set_number(m.number() + 1); }, " came after ");
  lie([](worker::v1::Report& m) { m.mutable_window_done()->set_window(100); }, "out of turn");
}

TEST_CASE("reports that come again do not count again") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    const auto [world, job] = MakeRunning(seed, 2000);
    RunUntilStep(*world, job, 3);
    world->worker(0).mischief().repeats = 30;
    world->CrashCoordinator();
    world->RunUntilState(job, Job::SUCCEEDED);
    CHECK(HasEvent(*world, job, "GROUP_ADOPTED"));
    CheckWentOn(*world, job);
    world->CheckInvariants();
  }
}

TEST_CASE("what was done while nobody listened, and is told at once, is no pace") {
  int64_t most_at_once = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    INFO("seed " << seed);
    WorldOptions options;
    options.seed = seed;
    options.delay_us_max = 20;
    options.workers_outlive = true;
    const auto world = MakeWorld(options);
    world->StartWorkers();
    Job content = LongJob();
    content.mutable_training()->set_max_steps(1000);
    content.mutable_training()->set_checkpoint_every_steps(0);
    content.clear_validation_dataset();
    const std::string name = world->Submit(content);
    RunUntilStep(*world, name, 400);
    const double rate = world->Job(name).tokens_per_second();
    const double left_s = world->Job(name).seconds_left();
    REQUIRE(rate > 0);
    REQUIRE(left_s > 0);
    for (uint64_t more = seed * 7 % 40; more > 0; --more) world->RunNext();
    world->CrashCoordinator();
    int64_t seen = world->Job(name).step();
    world->RunUntil([&, &site = *world] {
      const Job shown = site.Job(name);
      most_at_once = std::max(most_at_once, shown.step() - std::exchange(seen, shown.step()));
      CHECK(shown.tokens_per_second() < 1.5 * rate);
      CHECK((!shown.has_seconds_left() || shown.seconds_left() > 0.5 * left_s));
      const auto cluster = site.Get<v1::ClusterStatus>(v1::GetClusterRequest());
      for (const auto& group : cluster.groups()) CHECK(group.tokens_per_second() < 1.5 * rate);
      return shown.step() >= 600;
    });
    CHECK(HasEvent(*world, name, "GROUP_ADOPTED"));
    CHECK(world->Job(name).tokens_per_second() == Approx(rate).epsilon(0.2));
  }
  CHECK(most_at_once > 1);
}

TEST_CASE("who makes room for another base model goes where it was sent, and the other comes") {
  WorldOptions options;
  options.workers = GENERATE(2, 3);
  options.core.policy.minimum_run_s = GENERATE(0, 900);
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100'000);
  std::vector<std::string> jobs;
  for (int i = 0; i < options.workers; ++i) {
    jobs.push_back(world->Submit(content));
    world->Sleep(100'000);
  }
  content.set_base_model("m2");
  const std::string other = world->Submit(content);
  world->RunUntilState(other, Job::RUNNING);
  world->Sleep(1'000'000);
  int64_t moves = 0;
  for (const std::string& job : jobs) {
    moves += CountEvents(*world, job, "MOVED");
    CHECK(world->StateOf(job) == Job::RUNNING);
  }
  CHECK(moves == 1);
  CHECK(world->StateOf(other) == Job::RUNNING);
}

TEST_CASE("a job that was moved lately is not moved again, also after a start") {
  WorldOptions options;
  options.workers = 2;
  options.workers_outlive = GENERATE(true, false);
  options.core.policy.minimum_run_s = 1'000'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  world->Settle();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100'000);
  const auto submit = [&](const char* base_model) {
    content.set_base_model(base_model);
    const std::string job = world->Submit(content);
    world->Sleep(100'000);
    return job;
  };
  const std::vector<std::string> jobs = {submit("m"), submit("m")};
  const auto moves = [&] {
    return std::pair(CountEvents(*world, jobs[0], "MOVED"), CountEvents(*world, jobs[1], "MOVED"));
  };
  REQUIRE(moves() == std::pair<int64_t, int64_t>(0, 0));
  submit("m2");  // one of the two makes room for it
  world->Sleep(1'000'000);
  const auto [first, second] = moves();
  CHECK(first + second == 1);
  world->CrashCoordinator();
  world->Sleep(3'000'000);
  CHECK((moves().first <= 1 && moves().second <= 1));
  for (const std::string& job : jobs) CHECK(IsLive(world->StateOf(job)));
}

}  // namespace
}  // namespace lorad::server
