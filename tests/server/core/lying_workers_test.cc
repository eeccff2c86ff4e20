// Workers that say what fits nothing, as stories: such a worker is closed, and no more.
#include <algorithm>
#include <functional>
#include <limits>
#include <random>

#include "absl/strings/str_cat.h"
#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
using worker::v1::Report;
using worker::v1::WorkerMessage;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Worker 0 trains `job`, with evaluations; worker 1 a job of another base model.
struct Two {
  std::unique_ptr<World> world;
  std::string job, stranger;
};

Two MakeTwo(uint64_t seed = 1, int64_t delay_us_max = 0) {
  WorldOptions options;
  options.seed = seed;
  options.workers = 2;
  options.delay_us_max = delay_us_max;
  options.core.losses_without_progress_max = 1'000'000;
  Two two{MakeWorld(options), "", ""};
  two.world->StartWorkers();
  two.world->Settle();
  Job content = World::NewJob();
  content.set_validation_dataset("valid");
  content.mutable_training()->set_eval_every_steps(3);
  two.job = two.world->Submit(content);
  two.world->RunUntilState(two.job, Job::PREPARING);
  content.set_base_model("m2");
  two.stranger = two.world->Submit(content);
  two.world->RunUntilState(two.stranger, Job::PREPARING);
  return two;
}

int64_t CountNotes(World& world, const std::string& part) {
  return std::ranges::count_if(
      world.notes(), [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

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
    const int64_t last = world.plans().back().first_microbatch;
    done.set_microbatch(last - 1);
    done.set_tokens(numbers.tokens);
    done.set_squared_lengths(numbers.squared_lengths);
    done.set_forward_ms(numbers.forward_ms);
    done.set_backward_ms(numbers.backward_ms);
    done.set_adapters(numbers.adapters);
    world.worker(0).Lie(message);
    world.RunUntil([&] { return CountNotes(world, "MicrobatchDone of microbatch ") == 1; });
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

// ---- lies of all kinds, at any time ----

// Words and numbers of which some fit.
class Liar {
 public:
  Liar(std::mt19937_64& random, std::vector<std::string> jobs)
      : random_(random), jobs_(std::move(jobs)) {}

  WorkerMessage Message(int64_t epoch) {
    WorkerMessage message;
    switch (Pick(12)) {
      case 0:
        message.mutable_heartbeat()->set_peak_resident_bytes(Number());
        message.mutable_heartbeat()->set_resident_bytes(Number());
        break;
      case 1:
        message.mutable_cut_answer()->set_epoch(epoch);
        message.mutable_cut_answer()->set_cut(Number());
        message.mutable_cut_answer()->set_first_not_enqueued(Number());
        break;
      case 2:
        break;
      default:
        *message.mutable_report() = AReport();
    }
    return message;
  }

  worker::v1::UploadShardRequest::Header Shard(int64_t epoch) {
    worker::v1::UploadShardRequest::Header header;
    header.set_job(Name());
    header.set_step(Number());
    header.set_epoch(Pick(8) ? epoch : Number());
    header.set_stages(Pick(4) ? 1 : 3);
    header.set_numerics_id(Pick(4) ? "sim" : "\xff");
    return header;
  }

 private:
  uint64_t Pick(uint64_t many) { return random_() % many; }

  int64_t Number() {
    constexpr int64_t kEdges[] = {-1, std::numeric_limits<int64_t>::max(),
                                  std::numeric_limits<int64_t>::min()};
    return Pick(6) ? static_cast<int64_t>(Pick(9)) : kEdges[Pick(3)];
  }

  double Real() {
    constexpr double kEdges[] = {kNan, std::numeric_limits<double>::infinity(), -1, 1e300};
    return Pick(6) ? static_cast<double>(Pick(100)) / 10 : kEdges[Pick(4)];
  }

  std::string Name() { return Pick(6) ? jobs_[Pick(jobs_.size())] : Text(); }

  std::string Text() {
    return Pick(2) ? std::string(Pick(100'000), '\xfe') : std::string("MEMORY_TAKEN");
  }

  Report AReport() {
    Report report;
    switch (1 + Pick(12)) {
      case 1:
        report.mutable_group_formed()->set_reserved_bytes(Number());
        report.mutable_group_formed()->set_load_seconds(Real());
        break;
      case 2:
        report.mutable_group_failed()->set_reason(Text());
        report.mutable_group_failed()->set_message(Text());
        break;
      case 3:
        report.mutable_slot_loaded()->set_job(Name());
        report.mutable_slot_loaded()->set_step(Number());
        break;
      case 4:
        report.mutable_slot_failed()->set_job(Name());
        report.mutable_slot_failed()->set_reason(Text());
        report.mutable_slot_failed()->set_message(Text());
        break;
      case 5:
        report.mutable_slot_freed()->set_job(Name());
        break;
      case 6:
        AStep(report.mutable_step_done());
        break;
      case 7:
        AnEvaluation(report.mutable_evaluate_done());
        break;
      case 8:
        report.mutable_saved()->set_job(Name());
        break;
      case 9:
        report.mutable_microbatch_done()->set_microbatch(Number());
        report.mutable_microbatch_done()->set_tokens(Number());
        report.mutable_microbatch_done()->set_squared_lengths(Number());
        report.mutable_microbatch_done()->set_forward_ms(Real());
        report.mutable_microbatch_done()->set_backward_ms(Real());
        report.mutable_microbatch_done()->set_adapters(Pick(2));
        break;
      case 10:
        report.mutable_window_done()->set_window(Number());
        report.mutable_window_done()->set_busy_ms(Real());
        break;
      case 11:
        report.mutable_not_finite()->set_job(Name());
        report.mutable_not_finite()->set_step(Number());
        report.mutable_not_finite()->set_what(Pick(4) ? "loss" : Text());
        for (uint64_t i = Pick(4); i > 0; --i) report.mutable_not_finite()->add_sequences(Number());
        break;
      default:
        break;
    }
    return report;
  }

  void AStep(worker::v1::StepDone* done) {
    done->set_job(Name());
    done->set_step(Number());
    done->set_tokens(Pick(3) ? 80 : Number());
    done->set_trained_tokens(Pick(3) ? 4 * sim::kTrainedTokens : Number());
    done->set_learning_rate(Pick(3) ? 1e-3 : Real());
    done->set_loss(Real());
    done->set_grad_norm(Real());
  }

  void AnEvaluation(worker::v1::EvaluateDone* done) {
    done->set_job(Name());
    done->set_step(Number());
    for (uint64_t i = Pick(4); i > 0; --i) {
      done->add_sequence(Number());
      if (Pick(8)) done->add_loss_sum(Real());
      if (Pick(8)) done->add_trained_tokens(Number());
    }
  }

  std::mt19937_64& random_;
  const std::vector<std::string> jobs_;
};

void RunLies(uint64_t seed) {
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  Two two = MakeTwo(seed, seed % 3 == 0 ? 0 : 3000);
  World& world = *two.world;
  const std::string other = world.Submit(World::NewJob());  // beside `job`
  Liar liar(random, {two.job, other, two.stranger});
  int shards = 0, answered = 0;
  for (int i = 0; i < 12; ++i) {
    for (uint64_t steps = random() % 40; steps > 0; --steps) world.RunNext();
    switch (random() % 16) {
      case 0:
        world.Ask(Named<v1::CancelJobRequest>(other), [](absl::StatusOr<ReplyValue>) {});
        break;
      case 1:
        world.Ask(Named<v1::DeleteJobRequest>(other), [](absl::StatusOr<ReplyValue>) {});
        break;
      case 2:
        ++shards;
        world.UploadShard(liar.Shard(world.worker(0).epoch()),
                          [&](absl::StatusOr<ReplyValue>) { ++answered; });
        break;
      default:
        world.worker(0).Lie(liar.Message(world.worker(0).epoch()));
    }
  }
  // A lie can be one that a worker may tell: that the loss of its own job is not finite.
  world.RunUntil(
      [&] { return !IsLive(world.StateOf(two.job)) && !IsLive(world.StateOf(two.stranger)); });
  CHECK(world.StateOf(two.stranger) == Job::SUCCEEDED);
  CHECK(world.Job(two.stranger).attempts() == 1);
  world.Sleep(30'000'000);
  CHECK(shards == answered);
  world.CrashCoordinator();  // what was kept can be read
  CHECK(world.StateOf(two.stranger) == Job::SUCCEEDED);
}

TEST_CASE("whatever a worker says, whenever: the coordinator lives, and others see nothing") {
  for (uint64_t seed = 1; seed <= 2000; ++seed) RunLies(seed);
}

}  // namespace
}  // namespace lorad::server
