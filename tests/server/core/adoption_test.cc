// A coordinator that is killed finds groups with their workers again, where what they hold is what
// its store has of them (docs/adr/0028-groups-are-found-again.md).
#include <optional>

#include "server/core/events/records.pb.h"
#include "server/core/events/store_kinds.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kLeaseUs = 30'000'000;

Job LongJob() {
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

Running MakeRunning(uint64_t seed = 1, int64_t delay_us_max = 0, int workers = 1) {
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

void RunUntilStep(World& world, const std::string& job, int64_t step) {
  world.RunUntil([&] { return world.Job(job).step() >= step; });
}

std::optional<records::GroupRecord> RecordOfGroup(World& world) {
  std::optional<records::GroupRecord> found;
  const absl::Status status =
      world.store().ScanRecords(kGroupKind, [&](std::string_view, std::string_view value) {
        REQUIRE(found.emplace().ParseFromArray(value.data(), static_cast<int>(value.size())));
        return absl::OkStatus();
      });
  REQUIRE(status.ok());
  return found;
}

int64_t CountEvents(World& world, const std::string& job, const std::string& reason) {
  const auto events = world.Events(job);
  return std::ranges::count(events, reason, [](const v1::Event& event) { return event.reason(); });
}

// It never was back in the queue.
void CheckWentOn(World& world, const std::string& job) {
  const std::vector<State> states = StatesOf(world, job);
  CHECK(std::ranges::count(states, Job::PREPARING) == 1);
  CHECK(world.Job(job).attempts() == 1);
}

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

// Its worker is gone, and the coordinator was killed: whoever comes now says what he likes.
struct Abandoned {
  std::unique_ptr<World> world;
  std::string job;
  worker::v1::Hello hello;  // as its worker would say it
};

Abandoned MakeAbandoned() {
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

// The job has fallen back to its beginning, for no checkpoint was due, and ends all the same.
void CheckFormedAgain(World& world, const std::string& job, const std::string& why) {
  CHECK(CountNotes(world, why) == 1);
  const Job waits = world.Job(job);
  CHECK(waits.step() == 0);
  CHECK_FALSE(HasEvent(world, job, "GROUP_ADOPTED"));
  CHECK_FALSE(RecordOfGroup(world).has_value());
}

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

// ---- what clients want meanwhile ----

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
