// Whole histories under chaos. A failing seed becomes a case of its own.
#include <catch2/catch.hpp>
#include <iostream>
#include <random>

#include "absl/strings/str_cat.h"
#include "server/core/rules/job_states.h"
#include "tests/sim/world/world.h"

namespace lorad::sim {
namespace {

// A client that asks again under the same request_id until it is told.
class Client {
 public:
  Client(World& world, v1::Job job, std::string request_id)
      : world_(world), job_(std::move(job)), request_id_(std::move(request_id)) {}

  void Ask() {
    server::CreateJob request;
    request.job = job_;
    request.request_id = {request_id_, job_.SerializeAsString()};
    world_.Ask(request, [this](absl::StatusOr<server::ReplyValue> reply) {
      if (!reply.ok()) return Ask();
      const std::string& name = std::get<v1::Job>(*reply).name();
      if (!acknowledged_.empty()) REQUIRE(name == acknowledged_);
      acknowledged_ = name;
    });
  }
  const std::string& acknowledged() const { return acknowledged_; }

 private:
  World& world_;
  const v1::Job job_;
  const std::string request_id_;
  std::string acknowledged_;
};

v1::Job RandomJob(std::mt19937_64& random, int64_t rank_most) {
  v1::Job job = World::NewJob();
  if (random() % 4 == 0) job.set_base_model("m2");
  if (random() % 2) job.set_validation_dataset("valid");
  if (random() % 8 == 0) job.set_training_dataset("long");
  job.mutable_training()->set_epochs(1 + random() % 4);
  job.mutable_training()->set_batch_size(1 + random() % 5);
  job.mutable_training()->set_checkpoint_every_steps(random() % 4);
  job.mutable_training()->set_eval_every_steps(random() % 4);
  job.set_priority(static_cast<int>(random() % 3));
  job.mutable_adapter()->set_rank(static_cast<int>(rank_most >> random() % 5));
  return job;
}

// How often a group was formed again with shorter microbatches.
int64_t RunHistory(uint64_t seed) {
  std::cout << "sim_test: seed " << seed << std::endl;
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  WorldOptions options;
  options.seed = seed;
  options.workers = 1 + static_cast<int>(seed % 3);
  options.delay_us_max = seed % 2 ? 3000 : 30'000;
  // On GPUs with so little memory that groups are formed again with shorter microbatches.
  const bool gpu = seed % 5 < 2;
  if (gpu) options.gpu_memory_bytes = (350 + static_cast<int64_t>(random() % 8) * 10) << 20;
  options.core.microbatch_tokens = gpu ? 0 : 64;
  options.core.evaluate_sequences = 2;
  options.core.losses_without_progress_max = 1'000'000;
  options.core.lease_ms = 5000;
  World world(options);
  world.AddModel("m");
  world.AddModel("m2");
  world.AddDataset("train", 13);
  world.AddDataset("valid", 5);
  world.SetLongest("long", gpu ? 2500 : 100);
  world.AddDataset("long", 9);
  world.StartWorkers();

  std::vector<std::unique_ptr<Client>> clients;
  const int jobs = 12;
  const int calamities = 25;
  std::set<std::string> cancelled;
  for (int i = 0; i < jobs + calamities; ++i) {
    world.Sleep(static_cast<int64_t>(random() % 200'000));
    if (i % 3 == 0 && static_cast<int>(clients.size()) < jobs) {
      clients.push_back(std::make_unique<Client>(world, RandomJob(random, gpu ? 128 : 16),
                                                 absl::StrCat("request-", i)));
      clients.back()->Ask();
    }
    const int worker = static_cast<int>(random() % options.workers);
    switch (random() % 9) {
      case 0:
      case 1:
        world.CrashCoordinator();
        break;
      case 2:
      case 3:
        world.worker(worker).Kill();
        break;
      case 4:
        world.worker(worker).Silence();
        break;
      case 5: {
        const Client& client = *clients[random() % clients.size()];
        if (client.acknowledged().empty()) break;
        v1::CancelJobRequest request;
        request.set_name(client.acknowledged());
        world.Ask(request, [](absl::StatusOr<server::ReplyValue>) {});
        cancelled.insert(client.acknowledged());
        break;
      }
      case 7:
        world.worker(worker).mischief().repeats = 10;
        break;
      case 6:
        world.script().memory_taken = random() % 2 == 0;
        break;
      default:
        break;
    }
  }
  world.script().memory_taken = false;
  world.RunUntil(
      [&] {
        for (const auto& client : clients) {
          if (client->acknowledged().empty()) return false;
          if (server::IsLive(world.StateOf(client->acknowledged()))) return false;
        }
        return true;
      },
      400'000);
  // What was acknowledged is there, once, and has ended as it should.
  std::set<std::string> names;
  for (const auto& client : clients) {
    const v1::Job job = world.Job(client->acknowledged());
    INFO(job.ShortDebugString());
    CHECK(names.insert(job.name()).second);
    CHECK((job.state() == v1::Job::SUCCEEDED ||
           (job.state() == v1::Job::CANCELLED && cancelled.contains(job.name()))));
  }
  CHECK(world.Get<server::JobSnapshot>(server::SnapshotJobs{}).jobs.size() == names.size());
  world.CheckInvariants();
  world.CrashCoordinator();
  world.CheckInvariants();
  return std::ranges::count_if(world.notes(), [](const std::string& note) {
    return note.find("formed again with shorter microbatches") != std::string::npos;
  });
}

TEST_CASE("histories with deaths, delays, repetitions and cancellations end as they should") {
  int64_t shorter = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) shorter += RunHistory(seed);
  CHECK(shorter > 2);
}

TEST_CASE("a history of a random seed") { RunHistory(std::random_device{}()); }

}  // namespace
}  // namespace lorad::sim
