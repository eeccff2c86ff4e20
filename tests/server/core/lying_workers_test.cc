// Workers that say what fits nothing, as stories: such a worker is closed, and no more.
#include <functional>
#include <limits>

#include "tests/server/core/two_workers.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
using worker::v1::WorkerMessage;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// The stranger has noticed nothing, the job goes on, and the store can be read again.
void CheckAllIsWell(Two& two) {
  World& world = *two.world;
  world.worker(0).Hang(false);
  world.RunUntilState(two.stranger, Job::SUCCEEDED);
  CHECK(world.Job(two.stranger).attempts() == 1);
  world.RunUntilState(two.job, Job::SUCCEEDED);
  world.CheckInvariants();
  world.CrashCoordinator();
  world.CheckInvariants();
}

// ---- one lie after the other ----

struct Lie {
  const char* what;
  std::function<void(const std::string& job, WorkerMessage*)> tell;
};

// Told while the step after next of `job` is ordered and not executed.
const Lie kLies[] = {
    {"GroupFormed, of a group that was formed",
     [](auto&, auto* m) { m->mutable_report()->mutable_group_formed(); }},
    {"GroupFailed without a reason",
     [](auto&, auto* m) { m->mutable_report()->mutable_group_failed()->set_reason("no \xff"); }},
    {"which was not asked for",  // a slot that is loaded already
     [](auto& job, auto* m) { m->mutable_report()->mutable_slot_loaded()->set_job(job); }},
    {"which was not asked for",
     [](auto&, auto* m) { m->mutable_report()->mutable_slot_loaded()->set_job("\xff\xfe"); }},
    {"which was not asked for",
     [](auto& job, auto* m) { m->mutable_report()->mutable_slot_failed()->set_job(job); }},
    {"which was not asked for",  // of a job that trains
     [](auto& job, auto* m) { m->mutable_report()->mutable_slot_freed()->set_job(job); }},
    {"which was not asked for",
     [](auto& job, auto* m) {
       m->mutable_report()->mutable_step_done()->set_job(job);
       m->mutable_report()->mutable_step_done()->set_step(4000);
     }},
    {"its batch has",
     [](auto& job, auto* m) {
       auto& done = *m->mutable_report()->mutable_step_done();
       done.set_job(job);
       done.set_step(2);
       done.set_tokens(-5);
     }},
    {"with loss nan",
     [](auto& job, auto* m) {
       auto& done = *m->mutable_report()->mutable_step_done();
       done.set_job(job);
       done.set_step(2);
       done.set_tokens(80);
       done.set_trained_tokens(4 * sim::kTrainedTokens);
       done.set_learning_rate(1e-3);
       done.set_loss(kNan);
     }},
    {"with learning rate",
     [](auto& job, auto* m) {
       auto& done = *m->mutable_report()->mutable_step_done();
       done.set_job(job);
       done.set_step(2);
       done.set_tokens(80);
       done.set_trained_tokens(4 * sim::kTrainedTokens);
     }},
    {"with 2 sequences, 0 sums and 0 counts",
     [](auto& job, auto* m) {
       auto& done = *m->mutable_report()->mutable_evaluate_done();
       done.set_job(job);
       done.add_sequence(0);
       done.add_sequence(1);
     }},
    {"which was not asked for",  // an evaluation that is not planned
     [](auto& job, auto* m) {
       auto& done = *m->mutable_report()->mutable_evaluate_done();
       done.set_job(job);
       done.set_step(77);
       done.add_sequence(0);
       done.add_loss_sum(1);
       done.add_trained_tokens(1);
     }},
    {"which was not asked for",
     [](auto&, auto* m) { m->mutable_report()->mutable_microbatch_done()->set_microbatch(-7); }},
    {"which was not asked for",
     [](auto&, auto* m) {
       m->mutable_report()->mutable_microbatch_done()->set_microbatch(int64_t{1} << 62);
     }},
    {"out of turn",
     [](auto&, auto* m) { m->mutable_report()->mutable_window_done()->set_window(99); }},
    {"of nothing that is computed",
     [](auto& job, auto* m) {
       m->mutable_report()->mutable_not_finite()->set_job(job);
       m->mutable_report()->mutable_not_finite()->set_what(std::string(1 << 20, '\xff'));
     }},
    {"in sequences that its batch does not have",
     [](auto& job, auto* m) {
       auto& report = *m->mutable_report()->mutable_not_finite();
       report.set_job(job);
       report.set_step(2);
       report.set_what("loss");
       for (int i = 0; i < 100'000; ++i) report.add_sequences(i);
     }},
    {"which was not asked for", [](auto&, auto* m) { m->mutable_cut_answer()->set_cut(9); }},
    {"a report that says nothing known", [](auto&, auto* m) { m->mutable_report(); }},
    {"Heartbeat with -1 bytes",
     [](auto&, auto* m) { m->mutable_heartbeat()->set_resident_bytes(-1); }},
    {"what only the first message may be", [](auto&, auto* m) { m->mutable_hello(); }},
    {"what only the first message may be", [](auto&, auto*) {}},
};

TEST_CASE("a worker that says what fits nothing is closed; its job goes on, others see nothing") {
  for (const Lie& lie : kLies) {
    Two two = MakeTwo();
    World& world = *two.world;
    world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
    world.worker(0).Hang(true);
    world.Settle();
    REQUIRE(world.Job(two.job).step() == 1);
    WorkerMessage message;
    lie.tell(two.job, &message);
    if (message.has_cut_answer()) message.mutable_cut_answer()->set_epoch(world.worker(0).epoch());
    INFO(lie.what << ": " << message.ShortDebugString().substr(0, 300));
    world.worker(0).Lie(message);
    world.RunUntil([&] { return CountNotes(world, "it said what does not fit: ") > 0; });
    CHECK(CountNotes(world, lie.what) == 1);
    CheckAllIsWell(two);
  }
}

// Of the job's newest window, while its worker hangs: it is asked for, and not done.
int64_t MicrobatchAtHand(const Two& two) {
  const auto& plans = two.world->plans();
  const auto newest = std::find_if(plans.rbegin(), plans.rend(), [&](const PlanInput& plan) {
    return std::ranges::any_of(plan.trains,
                               [&](const TrainUnit& unit) { return unit.job == two.job; });
  });
  REQUIRE(newest != plans.rend());
  return newest->first_microbatch;
}

TEST_CASE("MicrobatchDone with numbers that cannot be") {
  struct Numbers {
    int64_t tokens, squared_lengths;
    double forward_ms, backward_ms;
    int adapters;
  };
  for (const Numbers& numbers :
       {Numbers{-1, 0, 1, 1, 1}, Numbers{1 << 30, 0, 1, 1, 1}, Numbers{10, -1, 1, 1, 1},
        Numbers{10, 101, 1, 1, 1}, Numbers{10, 100, kNan, 1, 1}, Numbers{10, 100, 1, -1, 1},
        Numbers{10, 100, 1, 1e300, 1}, Numbers{10, 100, 1, 1, -1}, Numbers{10, 100, 1, 1, 2}}) {
    Two two = MakeTwo();
    World& world = *two.world;
    world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
    world.worker(0).Hang(true);
    world.Settle();
    WorkerMessage message;
    auto& done = *message.mutable_report()->mutable_microbatch_done();
    done.set_microbatch(MicrobatchAtHand(two));
    done.set_tokens(numbers.tokens);
    done.set_squared_lengths(numbers.squared_lengths);
    done.set_forward_ms(numbers.forward_ms);
    done.set_backward_ms(numbers.backward_ms);
    done.set_adapters(numbers.adapters);
    world.worker(0).Lie(message);
    world.RunUntil([&] { return CountNotes(world, "MicrobatchDone of microbatch ") == 1; });
    CHECK(CountNotes(world, "which was not asked for") == 0);
    CheckAllIsWell(two);
  }
}

TEST_CASE("nothing is learned of a pass that took longer than since it was asked for") {
  for (const double forward_ms : {50.0, 1e7}) {
    Two two = MakeTwo();
    World& world = *two.world;
    world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
    world.worker(0).Hang(true);
    world.Settle();
    const auto constant_ms = [&] {
      const auto cluster = world.Get<v1::ClusterStatus>(v1::GetClusterRequest());
      const auto times = std::ranges::find(cluster.times(), world.Job(two.job).base_model(),
                                           &v1::TrainingTimes::base_model);
      REQUIRE(times != cluster.times().end());
      return times->constant_ms();
    };
    const double before_ms = constant_ms();
    WorkerMessage message;
    auto& done = *message.mutable_report()->mutable_microbatch_done();
    done.set_microbatch(MicrobatchAtHand(two));
    done.set_tokens(10);
    done.set_adapters(1);
    done.set_forward_ms(forward_ms);
    done.set_backward_ms(forward_ms);
    done.set_forward_begin_us(1);
    done.set_backward_begin_us(2);
    world.worker(0).Lie(message);
    world.Settle();
    INFO(forward_ms << " ms");
    CHECK((constant_ms() == before_ms) == (forward_ms > 1e6));
    CheckAllIsWell(two);
  }
}

TEST_CASE("MicrobatchDone at moments that no clock gives") {
  using Done = worker::v1::MicrobatchDone;
  const std::function<void(Done&)> lies[] = {
      [](Done& done) { done.set_forward_begin_us(-1); },
      [](Done& done) { done.set_backward_begin_us(std::numeric_limits<int64_t>::max()); },
      [](Done& done) { done.mutable_activations()->set_end_us(-1); },
      [](Done& done) { done.mutable_gradient()->set_begin_us(1); }};  // it ends before
  for (const auto& lie : lies) {
    Two two = MakeTwo();
    World& world = *two.world;
    world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
    world.worker(0).Hang(true);
    world.Settle();
    WorkerMessage message;
    Done& done = *message.mutable_report()->mutable_microbatch_done();
    done.set_microbatch(MicrobatchAtHand(two));
    lie(done);
    world.worker(0).Lie(message);
    world.RunUntil([&] { return CountNotes(world, "at moments that no clock gives") == 1; });
    CheckAllIsWell(two);
  }
}

TEST_CASE("SlotFreed of a job that trains, and then it is cancelled") {
  Two two = MakeTwo();
  World& world = *two.world;
  world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
  WorkerMessage message;
  message.mutable_report()->mutable_slot_freed()->set_job(two.job);
  world.worker(0).Lie(message);
  world.RunUntilState(two.job, Job::QUEUED);
  world.Get<Job>(Named<v1::CancelJobRequest>(two.job));
  world.RunUntilState(two.job, Job::CANCELLED);
  world.RunUntilState(two.stranger, Job::SUCCEEDED);
  CHECK(world.Job(two.stranger).attempts() == 1);
}

TEST_CASE("a window that is told of as done while its step is not is a lie") {
  Two two = MakeTwo();
  World& world = *two.world;
  world.RunUntil([&] { return world.Job(two.job).step() >= 1; });
  world.worker(0).Hang(true);
  world.Settle();
  WorkerMessage message;
  // The group's first window loads, the second evaluates, the third has step 1.
  message.mutable_report()->mutable_window_done()->set_window(3);
  world.worker(0).Lie(message);
  message.mutable_report()->mutable_window_done()->set_window(4);
  world.worker(0).Lie(message);
  world.RunUntil([&] { return CountNotes(world, "but nothing was said of job") == 1; });
  CheckAllIsWell(two);
}

TEST_CASE("a Hello that cannot be is refused, and the one that can is taken after it") {
  const std::function<void(worker::v1::Hello&)> kNonsense[] = {
      [](auto& hello) { hello.set_worker(""); },
      [](auto& hello) { hello.set_worker(std::string(1 << 20, 'w')); },
      [](auto& hello) { hello.set_worker("w\n"); },
      [](auto& hello) { hello.set_worker("two words"); },
      [](auto& hello) { hello.set_worker("w\xff"); },
      [](auto& hello) { hello.set_memory_bytes(-1); },
      [](auto& hello) { hello.set_memory_bytes(std::numeric_limits<int64_t>::max()); },
      [](auto& hello) { hello.set_threads(-1); },
      [](auto& hello) { hello.set_multiprocessors(-1); },
      [](auto& hello) { hello.set_value_bytes(1 << 30); },
      [](auto& hello) { hello.set_numerics_id("\xc3\x28"); },
      [](auto& hello) { hello.set_device_name(std::string(1 << 20, 'd')); },
      [](auto& hello) { hello.set_pid(-1); },
  };
  auto world = MakeWorld();
  const std::string job = world->Submit(World::NewJob());
  for (const auto& spoil : kNonsense) {
    worker::v1::Hello hello;
    hello.set_protocol_version(1);
    hello.set_worker("worker-9");
    hello.set_device("cpu");
    hello.set_memory_bytes(int64_t{8} << 30);
    hello.set_threads(2);
    spoil(hello);
    INFO(hello.ShortDebugString().substr(0, 200));
    const uint64_t connection = world->Connect(hello);
    world->Settle();
    CHECK_FALSE(world->IsConnected(connection));
  }
  CHECK(world->Get<v1::ListWorkersResponse>(v1::ListWorkersRequest()).workers_size() == 0);
  world->StartWorkers();
  world->RunUntilState(job, Job::SUCCEEDED);
}

}  // namespace
}  // namespace lorad::server
