// Workers that say whatever comes to them, whenever, as histories.
#include <limits>
#include <random>

#include "tests/server/core/two_workers.h"

namespace lorad::server {
namespace {

using Job = v1::Job;
using worker::v1::Report;
using worker::v1::WorkerMessage;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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
        if (Pick(2)) {
          report.mutable_saved()->set_job(Name());
          break;
        }
        report.mutable_save_delayed()->set_job(Name());
        report.mutable_save_delayed()->set_step(Number());
        report.mutable_save_delayed()->set_message(Text());
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
