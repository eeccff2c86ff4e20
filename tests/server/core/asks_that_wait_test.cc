// Asks of a base model that has no place: they wait like jobs, and neither side for a stream of the
// other.
#include "tests/server/core/asks.h"

namespace lorad::server {
namespace {

constexpr int64_t kSecondUs = 1'000'000;

// Messages take time, so that jobs do; of "m2" and "m3" jobs come, "m" is asked.
std::unique_ptr<World> MakeSlowWorld(uint64_t seed) {
  WorldOptions options;
  options.seed = seed;
  options.delay_us_max = 200'000;
  auto world = MakeWorld(options);
  world->AddModel("m3");
  world->StartWorkers();
  world->Settle();
  return world;
}

// Runs on until the job has begun.
void RunUntilItRuns(World& world, const std::string& job) {
  world.RunUntil([&] { return world.Job(job).step() > 0; });
}

TEST_CASE("an ask that waits is not passed by jobs of other models that came later") {
  auto world = MakeSlowWorld(GENERATE(1, 2, 3));
  RunUntilItRuns(*world, world->Submit(JobOf("m2")));
  Reader reader(*world, {AskBase(1, 4)});
  std::vector<std::string> jobs;
  // More than one worker can do, and some are more urgent than others.
  for (int i = 0; i < 100 && !reader.ended(); ++i) {
    jobs.push_back(world->Submit(JobOf(i % 2 == 0 ? "m2" : "m3", i / 5)));
    world->Sleep(2 * kSecondUs);
  }
  REQUIRE(reader.ended());
  REQUIRE(reader.status().ok());
  CHECK(reader.tokens(0) == Expected("", AskBase(1, 4)));
  // Those of the ten seconds in which it stood in nobody's way, and the one that trained.
  int64_t passed = 0;
  for (const std::string& job : jobs) passed += world->Job(job).step() > 0;
  CHECK(passed <= 5);
  for (const std::string& job : jobs) world->RunUntilState(job, v1::Job::SUCCEEDED);
  world->CheckInvariants();
}

TEST_CASE("an ask in its turn makes way for nobody, and after that for the jobs that wait") {
  auto world = MakeSlowWorld(1);
  v1::Job content = JobOf("m3");
  content.mutable_training()->set_epochs(40);
  const std::string first = world->Submit(content);
  RunUntilItRuns(*world, first);
  AskedAnswer ask = AskBase(1, 600);
  ask.base_model = "m2";
  Reader reader(*world, {ask});
  world->Sleep(11 * kSecondUs);
  REQUIRE(reader.tokens(0).empty());
  const std::string second = world->Submit(JobOf("m3", 7));
  world->RunUntil([&] { return !reader.tokens(0).empty(); });
  CHECK(world->StateOf(first) == v1::Job::SUCCEEDED);
  const int64_t began_us = world->now_us();
  world->Sleep(15 * kSecondUs);
  CHECK(world->StateOf(second) == v1::Job::QUEUED);
  CHECK(world->Job(second).queue().why().find("answers an ask that has waited") !=
        std::string::npos);
  world->RunUntil([&] { return world->StateOf(second) != v1::Job::QUEUED; });
  CHECK(world->now_us() - began_us > 25 * kSecondUs);
  CHECK(world->now_us() - began_us < 45 * kSecondUs);
  CHECK(!reader.ended());
  world->RunUntilState(second, v1::Job::SUCCEEDED);
  world->RunUntil([&] { return reader.ended(); });
  CHECK(reader.tokens(0) == Expected("", ask));
  world->CheckInvariants();
}

TEST_CASE("asks of two models take turns, and a stream of them keeps no job from its place") {
  auto world = MakeSlowWorld(GENERATE(1, 2, 3));
  RunUntilItRuns(*world, world->Submit(JobOf("m3")));
  std::vector<std::unique_ptr<Reader>> readers;
  const auto ask = [&] {
    AskedAnswer asked = AskBase(readers.size(), 400);
    if (readers.size() % 2 == 1) asked.base_model = "m2";
    readers.push_back(std::make_unique<Reader>(*world, std::vector{asked}));
  };
  ask();
  ask();
  world->Sleep(12 * kSecondUs);
  const std::string job = world->Submit(JobOf("m3"));
  const int64_t came_us = world->now_us();
  while (world->StateOf(job) == v1::Job::QUEUED && world->now_us() - came_us < 300 * kSecondUs) {
    ask();
    world->Sleep(3 * kSecondUs);
  }
  // Both asks were there before it; what came after it was not.
  CHECK(world->now_us() - came_us < 120 * kSecondUs);
  CHECK(!readers[0]->tokens(0).empty());
  CHECK(!readers[1]->tokens(0).empty());
  world->RunUntilState(job, v1::Job::SUCCEEDED);
  for (const auto& reader : readers) {
    world->RunUntil([&] { return reader->ended(); }, 1'000'000);
    CHECK(reader->status().ok());
  }
  world->CheckInvariants();
}

}  // namespace
}  // namespace lorad::server
