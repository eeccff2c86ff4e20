// A worker that says what does not fit is closed, and no job suffers from it.
#include "tests/sim/worker/lies.h"

#include <catch2/catch.hpp>

#include "server/core/rules/job_states.h"
#include "tests/sim/clients/asking_client.h"
#include "tests/sim/clients/job_client.h"
#include "tests/sim/site.h"

namespace lorad::sim {
namespace {

// Two jobs, one of which is cancelled while it runs.
struct Liar {
  explicit Liar(const SiteOptions& options = Options()) : site(options) {
    site.AddModels();
    site.AddDataset("train.jsonl", 40);
    site.AddDataset("valid.jsonl", 5);
  }

  static SiteOptions Options() {
    SiteOptions options;
    options.core.microbatch_tokens = 64;
    options.core.evaluate_sequences = 2;
    options.core.lease_ms = 5000;
    options.core.heartbeat_ms = 20;
    return options;
  }

  JobClient::Plan PlanOf(const std::string& request_id) {
    JobClient::Plan plan;
    plan.request_id = request_id;
    plan.job.set_base_model("m");
    plan.job.set_training_dataset("train.jsonl");
    plan.job.set_validation_dataset("valid.jsonl");
    plan.job.mutable_adapter()->set_rank(4);
    plan.job.mutable_adapter()->set_alpha(8);
    plan.job.mutable_adapter()->add_target_modules("q_proj");
    plan.job.mutable_training()->set_epochs(3);
    plan.job.mutable_training()->set_batch_size(4);
    plan.job.mutable_training()->set_max_length(64);
    plan.job.mutable_training()->set_learning_rate(1e-3);
    plan.job.mutable_training()->set_schedule(v1::TrainingConfig::CONSTANT);
    plan.job.mutable_training()->set_checkpoint_every_steps(2);
    return plan;
  }

  // To the end of both jobs and of an answer, with a worker that has just been started.
  void Run() {
    site.worker(0).Kill();
    JobClient stays(site, census, PlanOf("stays")), leaves(site, census, PlanOf("leaves"));
    stays.Begin();
    leaves.Begin();
    AskingClient asks(site, {{.base_model = "m", .prompt = {1, 2, 3}, .max_tokens = 5}});
    asks.Begin();
    site.RunUntil([&] { return leaves.job().step() >= 2 || leaves.ended(); }, 100'000);
    leaves.Cancel();
    site.RunUntil([&] { return stays.ended() && leaves.ended() && asks.ended(); }, 200'000);
    INFO(stays.job().ShortDebugString());
    CHECK(stays.job().state() == v1::Job::SUCCEEDED);
    INFO(leaves.job().ShortDebugString());
    CHECK(leaves.job().state() == v1::Job::CANCELLED);
    site.CheckAll();
  }

  Site site;
  Census census;
};

TEST_CASE("every lie closes its worker, once, and fails no job") {
  for (int lie = 0; lie < CountLies(); ++lie) {
    Liar liar;
    Mischief& mischief = liar.site.worker(0).mischief();
    mischief.lie = lie;
    mischief.lies = 1;
    INFO(NameOfLie(lie));
    liar.Run();
    CHECK(mischief.lies_told() == 1);
    CHECK(liar.site.closings() == 1);
  }
}

TEST_CASE("a worker that tells the same lie again and again fails no job") {
  for (int lie = 0; lie < CountLies(); ++lie) {
    Liar liar;
    Mischief& mischief = liar.site.worker(0).mischief();
    mischief.lie = lie;
    mischief.lies = 2 * Liar::Options().core.losses_without_progress_max;
    INFO(NameOfLie(lie));
    liar.Run();
    CHECK(mischief.lies_told() > 0);
  }
}

// What could be true is not among the lies: the same step elsewhere tells.
TEST_CASE("a worker whose device is broken fails no job that another one can train") {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SiteOptions options = Liar::Options();
    options.seed = seed;
    options.machines = {{"worker-0"}, {"worker-1"}, {"worker-2"}};
    Liar liar(options);
    liar.site.worker(0).mischief().broken = true;
    INFO("seed " << seed);
    liar.Run();
  }
}

TEST_CASE("a shard that was not asked for is refused, and its job's checkpoint comes after all") {
  for (int lie = 0; lie < CountShardLies(); ++lie) {
    Liar liar;
    Mischief& mischief = liar.site.worker(0).mischief();
    mischief.shard_lie = lie;
    mischief.shard_lies = 1;
    INFO(NameOfShardLie(lie));
    liar.Run();
    CHECK(mischief.lies_told() == 1);
  }
}

}  // namespace
}  // namespace lorad::sim
