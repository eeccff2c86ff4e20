// Answers that clients ask for, as stories.
#include <set>

#include "tests/server/core/asks.h"

namespace lorad::server {
namespace {

int64_t WindowsOf(World& world) {
  int64_t most = 0;
  for (const PlanInput& plan : world.plans()) most = std::max(most, plan.window);
  return most;
}

TEST_CASE("a base model answers without a job, and its group stays") {
  auto world = MakeWorld();
  world->StartWorkers();
  const AskedAnswer ask = AskBase();
  Reader reader(*world, {ask});
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected("", ask));
  CHECK(reader.finish(0) == v1::GenerateResponse::LENGTH);
  CHECK(WindowsOf(*world) == 6);  // a window for each token
  world->Settle();
  world->CheckInvariants();
}

TEST_CASE("several answers of a job's checkpoints and the base are made at once") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  AskedAnswer old = AskJob(job, 7);
  old.step = 2;
  const std::vector<AskedAnswer> asks = {AskJob(job), AskBase(5), old, AskJob(job, 2, 3)};
  const int64_t before = WindowsOf(*world);
  Reader reader(*world, asks);
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.started().steps == std::vector<int64_t>{6, 0, 2, 6});
  CHECK(reader.tokens(0) == Expected(ContentOf(job, 6), asks[0]));
  CHECK(reader.tokens(1) == Expected("", asks[1]));
  CHECK(reader.tokens(2) == Expected(ContentOf(job, 2), asks[2]));
  CHECK(reader.tokens(3) == Expected(ContentOf(job, 6), asks[3]));
  // A load, and then each window has a token of all that are not at their end. One after the other
  // they would take 21, and two windows on their way, each with half of the answers, 12.
  CHECK(WindowsOf(*world) - before <= 1 + 6 + 1);
  world->Settle();
  world->CheckInvariants();
}

TEST_CASE("an answer ends with an end-of-text token, or when its reader has enough") {
  auto world = MakeWorld();
  world->StartWorkers();
  AskedAnswer ends = AskBase(1, 50);
  ends.ends = {NextToken("", 1, 5 + 4)};
  const std::vector<int32_t> expected = Expected("", ends);
  REQUIRE(expected.size() <= 5);
  Reader reader(*world, {ends});
  world->RunUntil([&] { return reader.ended(); });
  CHECK(reader.tokens(0) == expected);
  CHECK(reader.finish(0) == v1::GenerateResponse::EOS);

  Reader other(*world, {AskBase(1, 1000)});
  world->RunUntil([&] { return other.tokens(0).size() >= 4; });
  other.Stop(0);
  world->RunUntil([&] { return other.ended(); });
  CHECK(other.status().ok());
  CHECK(other.tokens(0).size() < 10);
  world->CheckInvariants();
}

TEST_CASE("a job that trains is asked at its newest checkpoint, and keeps its steps") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 4; });
  const AskedAnswer ask = AskJob(job, 3, 8);
  Reader reader(*world, {ask});
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected(ContentOf(job, reader.started().steps[0]), ask));
  CHECK(world->StateOf(job) == v1::Job::RUNNING);  // beside it
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() <= 2);  // its group was formed again at most once
  CHECK(world->Metrics(job).size() == 30);
  world->CheckInvariants();
}

TEST_CASE("beside a job answers have no more of a window than its own tokens, or one token") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 2; });
  std::vector<AskedAnswer> asks;
  for (uint64_t i = 0; i < 40; ++i) asks.push_back(AskBase(i, 4));
  const size_t before = world->plans().size();
  Reader reader(*world, asks);
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  for (size_t i = 0; i < asks.size(); ++i) CHECK(reader.tokens(i) == Expected("", asks[i]));
  int64_t beside = 0;
  for (size_t i = before; i < world->plans().size(); ++i) {
    const PlanInput& plan = world->plans()[i];
    if (plan.trains.empty() || plan.generates.empty()) continue;
    int64_t tokens = 0;
    for (const auto& unit : plan.generates) {
      for (const auto& segment : unit.segments) tokens += segment.input_ids_size();
    }
    ++beside;
    CHECK(tokens <= 4 * 20);  // its batches: 4 rows of 20 tokens
  }
  CHECK(beside > 0);
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("answers wait for a worker and say so; one that is lost costs a token") {
  auto world = MakeWorld();
  const AskedAnswer ask = AskBase(1, 40);
  Reader reader(*world, {ask});
  world->Settle();
  REQUIRE(!reader.waiting().empty());
  CHECK(reader.waiting().front() == "no worker is connected");
  world->StartWorkers();
  world->RunUntil([&] { return reader.tokens(0).size() >= 10; });
  world->worker(0).Kill();
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected("", ask));
  world->CheckInvariants();
}

TEST_CASE("an answer goes on when its group is cut for a job that is cancelled") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  const std::string other = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 4; });
  const AskedAnswer ask = AskJob(job, 3, 30);
  Reader reader(*world, {ask, AskBase(4, 30)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 3; });
  world->Get<v1::Job>(Named<v1::CancelJobRequest>(other));
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected(ContentOf(job, reader.started().steps[0]), ask));
  CHECK(reader.tokens(1) == Expected("", AskBase(4, 30)));
  world->CheckInvariants();
}

TEST_CASE("a group is formed again for a prompt that is longer than its rows, once") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 4; });
  AskedAnswer ask = AskJob(job, 3, 4);
  ask.prompt.assign(700, 2);
  Reader reader(*world, {ask});
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected(ContentOf(job, reader.started().steps[0]), ask));
  CHECK(world->StateOf(job) != v1::Job::SUCCEEDED);
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(world->Metrics(job).size() == 30);
  CHECK(world->Job(job).attempts() == 2);
  world->CheckInvariants();
}

std::set<int64_t> EpochsThatAnswer(World& world) {
  std::set<int64_t> epochs;
  for (const PlanInput& plan : world.plans()) {
    if (!plan.generates.empty()) epochs.insert(plan.epoch);
  }
  return epochs;
}

TEST_CASE("room is made for the tokens that come, not for those that may") {
  auto world = MakeWorld();
  // 2000 tokens more do not fit; 512 do: a prompt of 5 tokens and the 256 behind it, rounded up.
  world->script().longest_most = 512;
  world->StartWorkers();
  Reader reader(*world, {AskBase(1, 2000)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 10; });
  REQUIRE(world->Call(EndGeneration{reader.started().name}).ok());
  CHECK(EpochsThatAnswer(*world).size() == 1);
  world->CheckInvariants();
}

TEST_CASE("a group that has room for what comes is not formed again for what may") {
  auto world = MakeWorld();
  world->SetLongest("train", 600);
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 4; });
  Reader reader(*world, {AskJob(job, 3, 2000)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 400; });
  REQUIRE(world->Call(EndGeneration{reader.started().name}).ok());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(world->Job(job).attempts() == 1);
  std::set<std::string> guests;
  for (const PlanInput& plan : world->plans()) {
    for (const GenerateUnit& unit : plan.generates) guests.insert(unit.job);
  }
  CHECK(guests.size() == 1);  // it has all the room that the group has
  world->CheckInvariants();
}

TEST_CASE("answers that outgrow their group's room go on in one that has more") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  const std::vector<AskedAnswer> asks = {AskJob(job, 3, 1100), AskJob(job, 4, 20), AskBase(5, 600)};
  Reader reader(*world, asks);
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected(ContentOf(job, reader.started().steps[0]), asks[0]));
  CHECK(reader.tokens(1) == Expected(ContentOf(job, reader.started().steps[1]), asks[1]));
  CHECK(reader.tokens(2) == Expected("", asks[2]));
  CHECK(EpochsThatAnswer(*world).size() == 3);  // of 512, 1024 and 2048 tokens
  world->Settle();
  world->CheckInvariants();
}

TEST_CASE("who asks for what is not there learns why") {
  auto world = MakeWorld();
  world->StartWorkers();
  const auto reason = [&](AskedAnswer ask) {
    return Reason(world->Call(StartGeneration{{std::move(ask)}}).status());
  };
  CHECK(reason(AskJob("job-none")) == "JOB_NOT_FOUND");
  AskedAnswer other = AskBase();
  other.base_model = "none";
  CHECK(reason(other) == "MODEL_NOT_FOUND");
  other = AskBase();
  other.adapter = "none";
  CHECK(reason(other) == "ADAPTER_NOT_FOUND");
  v1::Job slow = LongJob();
  slow.mutable_training()->set_checkpoint_every_steps(0);
  const std::string job = world->Submit(slow);
  world->RunUntil([&] { return world->Job(job).step() >= 2; });
  const absl::Status none = world->Call(StartGeneration{{AskJob(job)}}).status();
  CHECK(Reason(none) == "NO_CHECKPOINT");
  CHECK(std::string(none.message()).find("first one at step 30") != std::string::npos);
  other = AskJob(job);
  other.step = 3;
  const absl::Status absent = world->Call(StartGeneration{{other}}).status();
  CHECK(Reason(absent) == "CHECKPOINT_NOT_FOUND");
  CHECK(absent.message() == "job '" + job + "' has no checkpoint of step 3; it has none yet");
  v1::Job gone = World::NewJob();
  gone.set_base_model("m2");
  const std::string ended = world->Submit(gone);
  world->RunUntilState(ended, v1::Job::SUCCEEDED);
  REQUIRE(world->Call(Named<v1::UnregisterModelRequest>("m2")).ok());
  CHECK(reason(AskJob(ended)) == "MODEL_NOT_FOUND");
  world->AddModel("m2");
  other = AskBase();
  other.base_model = "m2";
  CHECK(world->Call(StartGeneration{{AskBase(), other}}).status().code() ==
        absl::StatusCode::kInvalidArgument);
  other = AskBase();
  other.max_tokens = 1 << 30;
  CHECK(reason(other) == "NO_WORKER_FITS");
  CHECK(Reason(world->Call(ReadGeneration{"generation-9", {0}, {}}).status()) == "GENERATION_GONE");
  world->CheckInvariants();
}

TEST_CASE("a job that is deleted while it is asked ends the call") {
  auto world = MakeWorld();
  world->StartWorkers();
  const std::string job = world->Submit(World::NewJob());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  Reader reader(*world, {AskJob(job, 1, 100), AskBase(1, 100)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 3; });
  REQUIRE(world->Call(Named<v1::DeleteJobRequest>(job)).ok());
  world->RunUntil([&] { return reader.ended(); });
  CHECK(reader.status().code() == absl::StatusCode::kNotFound);
  CHECK(Reason(reader.status()) == "ASKED_IS_GONE");
  world->Settle();
  world->CheckInvariants();
}

TEST_CASE("a reader that vanishes ends its answers, whether it waits or asks for nothing") {
  auto world = MakeWorld();
  world->StartWorkers();
  Reader reader(*world, {AskBase(1, 1'000)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 3; });
  SECTION("it is given up") {
    REQUIRE(world->Call(GiveUpRequest{reader.reading()}).ok());
    world->RunUntil([&] { return reader.ended(); });
    CHECK(reader.status().code() == absl::StatusCode::kCancelled);
  }
  SECTION("it ends it") {
    REQUIRE(world->Call(EndGeneration{reader.started().name}).ok());
    world->RunUntil([&] { return reader.ended(); });
  }
  SECTION("it asks for nothing") { reader.Vanish(); }
  world->Sleep(2 * kUnreadUs);
  const size_t before = world->plans().size();
  world->Sleep(kUnreadUs);
  CHECK(world->plans().size() == before);  // nothing is asked for any more
  CHECK(Reason(world->Call(ReadGeneration{reader.started().name, {0}, {}}).status()) ==
        "GENERATION_GONE");
  world->CheckInvariants();
}

TEST_CASE("a coordinator that is killed forgets answers, and its jobs go on") {
  WorldOptions options;
  options.workers_outlive = GENERATE(false, true);
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string job = world->Submit(LongJob());
  world->RunUntil([&] { return world->Job(job).last_checkpoint_step() >= 4; });
  Reader reader(*world, {AskJob(job, 1, 200), AskBase(1, 200)});
  world->RunUntil([&] { return reader.tokens(0).size() >= 3 && reader.tokens(1).size() >= 3; });
  world->CrashCoordinator();
  CHECK(Reason(world->Call(ReadGeneration{reader.started().name, {0, 0}, {}}).status()) ==
        "GENERATION_GONE");
  const AskedAnswer ask = AskBase(9);
  Reader again(*world, {ask});
  world->RunUntil([&] { return again.ended(); });
  CHECK(again.tokens(0) == Expected("", ask));
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(world->Metrics(job).size() == 30);
  world->CheckInvariants();
}

// How often the token behind so many was asked for, of all answers.
int64_t TimesAsked(World& world, int64_t number) {
  int64_t times = 0;
  for (const PlanInput& plan : world.plans()) {
    for (const GenerateUnit& unit : plan.generates) {
      for (const auto& segment : unit.segments) times += segment.sampling().number() == number;
    }
  }
  return times;
}

TEST_CASE("a group that only answers makes way for a job of another model, and answers go on") {
  auto world = MakeWorld();
  world->StartWorkers();
  const AskedAnswer long_ask = AskBase(1, 60);
  Reader first(*world, {long_ask});
  world->RunUntil([&] { return first.tokens(0).size() >= 3; });
  const std::string job = world->Submit(JobOf("m2", GENERATE(0, 100)));
  world->RunUntilState(job, v1::Job::RUNNING);
  CHECK(!first.ended());
  const size_t had = first.tokens(0).size();
  Reader second(*world, {AskBase(2, 4)});  // more of the same guest
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK((first.tokens(0).size() == had && had < 10 && second.tokens(0).empty()));
  world->RunUntil([&] { return first.ended() && second.ended() && !first.waiting().empty(); });
  CHECK(first.tokens(0) == Expected("", long_ask));
  CHECK(second.tokens(0) == Expected("", AskBase(2, 4)));
  // Only the token that was under way was asked for again.
  CHECK((TimesAsked(*world, 1) == 2 && TimesAsked(*world, 50) == 1));
  CHECK(CountNotes(*world, "it only answers, and makes way for " + job) == 1);
  world->CheckInvariants();
}

TEST_CASE("a group that is being formed for answers alone makes way, too") {
  auto world = MakeWorld();
  world->StartWorkers();
  world->Settle();
  world->worker(0).Hang(true);
  Reader reader(*world, {AskBase(1, 60)});
  world->Settle();
  const std::string job = world->Submit(JobOf("m2"));
  world->worker(0).Hang(false);
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(reader.tokens(0).empty());
  world->RunUntil([&] { return reader.ended(); });
  CHECK(reader.tokens(0) == Expected("", AskBase(1, 60)));
  world->CheckInvariants();
}

TEST_CASE("answers that wait do not take a worker that a job is to have") {
  auto world = MakeWorld();
  Reader reader(*world, {AskBase(1, 60)});
  const std::string job = world->Submit(JobOf("m2"));
  world->StartWorkers();
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  CHECK(reader.tokens(0).empty());
  world->RunUntil([&] { return reader.ended(); });
  CHECK(reader.tokens(0) == Expected("", AskBase(1, 60)));
  CHECK(CountNotes(*world, "makes way") == 0);  // no group was formed in vain
}

TEST_CASE("no job is driven out where a group that only answers can make way") {
  WorldOptions options;
  options.workers = 2;
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string trains = world->Submit(LongJob());
  world->RunUntilState(trains, v1::Job::RUNNING);
  AskedAnswer ask = AskBase(1, 200);
  ask.base_model = "m2";
  Reader reader(*world, {ask});
  world->RunUntil([&] { return reader.tokens(0).size() >= 3; });
  world->AddModel("m3");
  const std::string urgent = world->Submit(JobOf("m3", 100));
  world->RunUntilState(urgent, v1::Job::SUCCEEDED);
  world->RunUntilState(trains, v1::Job::SUCCEEDED);
  CHECK(world->Job(trains).attempts() == 1);
  world->RunUntil([&] { return reader.ended(); });
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected("", ask));
  world->CheckInvariants();
}

TEST_CASE("a stream of asks keeps no worker from the jobs of another model") {
  WorldOptions options;
  options.seed = GENERATE(1, 2, 3);
  options.delay_us_max = 20'000;
  auto world = MakeWorld(options);
  world->StartWorkers();
  std::vector<std::unique_ptr<Reader>> readers;
  std::vector<std::string> jobs;
  for (uint64_t i = 0; i < 12; ++i) {
    readers.push_back(std::make_unique<Reader>(*world, std::vector{AskBase(i, 30)}));
    if (i % 4 == 1) jobs.push_back(world->Submit(JobOf("m2")));
    world->Sleep(200'000);
  }
  for (const std::string& job : jobs) world->RunUntilState(job, v1::Job::SUCCEEDED);
  for (uint64_t i = 0; i < readers.size(); ++i) {
    world->RunUntil([&] { return readers[i]->ended(); });
    CHECK(readers[i]->tokens(0) == Expected("", AskBase(i, 30)));
  }
  world->CheckInvariants();
}

TEST_CASE("a job that fits nowhere keeps nobody from an answer") {
  auto world = MakeWorld();
  world->StartWorkers();
  Reader first(*world, {AskBase(1, 4)});
  world->RunUntil([&] { return first.ended(); });
  world->AddModel("several", 4);
  v1::Job stuck = World::NewJob();
  stuck.set_base_model("several");  // on four workers, and there is one
  const std::string job = world->Submit(stuck);
  world->RunUntilState(job, v1::Job::QUEUED);
  for (uint64_t seed : {2, 3}) {
    Reader more(*world, {AskBase(seed, 4)});
    world->RunUntil([&] { return more.ended(); });
    CHECK(more.tokens(0) == Expected("", AskBase(seed, 4)));
  }
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
