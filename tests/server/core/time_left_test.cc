// When jobs that train, or would train alone, end, as stories.
#include <algorithm>

#include "tests/server/core/forecasts.h"

namespace lorad::server {
namespace {

// Of 120 steps, each with an evaluation behind it that takes ten windows.
Job EvaluatedJob(World& world) {
  world.AddDataset("large", 160);
  Job job = LongJob();
  job.set_validation_dataset("large");
  job.mutable_training()->set_eval_every_steps(1);
  return job;
}

// Seconds from its making.
double EndOf(const v1::JobEstimate& estimate) {
  const v1::Forecast& forecast = estimate.forecast();
  return 1e-6 * static_cast<double>(Micros(forecast.end_time()) - Micros(forecast.make_time()));
}

TEST_CASE("a job that has not begun ends when its time alone is over, with its evaluations") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  world->Settle();
  const Job job = EvaluatedJob(*world);
  const auto estimate = world->Get<v1::JobEstimate>(EstimateJob{.job = job});
  REQUIRE(estimate.seconds() > 0);
  // It loads the base model, and no attention is in it.
  CHECK(EndOf(estimate) > 0.9 * estimate.seconds());
  CHECK(EndOf(estimate) < 1.3 * estimate.seconds());
}

TEST_CASE("the end of a job that trains is foreseen with the evaluations that are left, once") {
  WorldOptions options = Few();
  options.delay_us_max = 10'000;  // rounds last some times as long as microbatches, not a hundred
  auto world = MakeWorld(options);
  world->StartWorkers();
  const std::string name = world->Submit(EvaluatedJob(*world));
  for (const int64_t step : {30, 60, 110}) {
    world->RunUntil([&] { return world->Job(name).step() >= step; });
    const int64_t began_us = world->now_us();
    const double foreseen_s = EndOf(EstimateOf(*world, name));
    const double left_s = world->Job(name).seconds_left();
    auto again = MakeWorld(options);  // the same until then, to see what comes of it
    again->StartWorkers();
    const std::string same = again->Submit(EvaluatedJob(*again));
    again->RunUntilState(same, Job::SUCCEEDED);
    const double took_s = 1e-6 * static_cast<double>(again->now_us() - began_us);
    INFO("from step " << step << ": foreseen " << foreseen_s << ", left " << left_s << ", took "
                      << took_s);
    CHECK(foreseen_s == Approx(took_s).epsilon(0.2));
    CHECK(left_s == Approx(took_s).epsilon(0.2));
  }
}

TEST_CASE("a job is not at its end while its last evaluation runs") {
  auto world = MakeWorld(Few());
  world->StartWorkers();
  Job content = EvaluatedJob(*world);
  content.mutable_training()->set_eval_every_steps(0);
  const std::string name = world->Submit(content);
  world->RunUntilState(name, Job::FINALIZING);
  const v1::JobEstimate estimate = EstimateOf(*world, name);
  REQUIRE(estimate.has_forecast());
  CHECK_FALSE(estimate.forecast().has_start_time());
  CHECK(EndOf(estimate) > 0);
  double least_s = world->Job(name).seconds_left();
  const double first_s = least_s;
  world->RunUntil([&] {
    const bool evaluated = world->Evaluations(name).size() == 2;
    if (!evaluated) least_s = std::min(least_s, world->Job(name).seconds_left());
    return evaluated;
  });
  CHECK(least_s > 0);
  CHECK(least_s < first_s / 4);  // it gets less with every part
  world->RunUntilState(name, Job::SUCCEEDED);
  CHECK_FALSE(world->Job(name).has_seconds_left());
}

TEST_CASE("the optimizer's passes count once in what is foreseen") {
  WorldOptions options;
  options.token_ms = 0.2;
  options.rank_ms = 0.1;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = LongJob();
  content.mutable_training()->set_batch_size(1);  // of 20 tokens: the pass is twice that, and more
  content.mutable_adapter()->set_rank(32);
  content.mutable_training()->set_epochs(30);
  const std::string name = world->Submit(content);
  world->RunUntil([&] { return world->Job(name).step() >= 120; });
  const double end_s = EndOf(EstimateOf(*world, name));
  const int64_t then_us = world->now_us();
  world->RunUntilState(name, Job::SUCCEEDED);
  CHECK(end_s == Approx(static_cast<double>(world->now_us() - then_us) / 1e6).epsilon(0.1));
}

TEST_CASE("the time that is left of a job knows that others end before it") {
  WorldOptions options;
  options.token_ms = 0.2;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = LongJob();
  content.mutable_training()->set_epochs(200);  // 600 steps
  const std::string longest = world->Submit(content);
  content.mutable_training()->set_epochs(80);
  std::vector<std::string> others;
  for (int i = 0; i < 5; ++i) others.push_back(world->Submit(content));
  world->RunUntil([&] { return world->Job(longest).step() >= 120; });
  CHECK(world->StateOf(others[0]) == Job::RUNNING);
  const double left_s = world->Job(longest).seconds_left();
  const int64_t then_us = world->now_us();
  for (const std::string& job : others) world->RunUntilState(job, Job::SUCCEEDED);
  world->RunUntilState(longest, Job::SUCCEEDED);
  CHECK(left_s == Approx(static_cast<double>(world->now_us() - then_us) / 1e6).epsilon(0.15));
}

TEST_CASE("the time that is left of a job that is to finish is that of its steps at hand") {
  WorldOptions options = Few();
  options.token_ms = 0.5;
  options.truthful = true;
  auto world = MakeWorld(options);
  world->StartWorkers();
  Job content = World::NewJob();
  content.mutable_training()->set_epochs(100);
  const std::string name = world->Submit(content);
  world->RunUntil([&] { return world->Job(name).step() >= 100; });
  const Job asked = world->Get<Job>(Named<v1::FinishJobRequest>(name));
  REQUIRE(asked.finish_step() > asked.step() + 1);
  world->RunUntil([&] { return world->Job(name).step() > asked.step(); });
  const Job job = world->Job(name);
  const double of_all = asked.seconds_left() / static_cast<double>(300 - asked.step());
  CHECK(job.seconds_left() ==
        Approx(of_all * static_cast<double>(asked.finish_step() - job.step())).epsilon(0.3));
  world->RunUntilState(name, Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
