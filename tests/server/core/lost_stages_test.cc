// A stage of a group fails, or is lost: who takes its place, and what becomes of its neighbour.
#include <set>

#include "tests/server/core/scenario.h"

namespace lorad::server {
namespace {

using Job = v1::Job;

constexpr int64_t kSecond = 1'000'000;
constexpr int64_t kPlenty = int64_t{1} << 34;

// What one of several workers says of its group.
worker::v1::WorkerMessage Saying(int64_t epoch, int64_t number,
                                 const std::function<void(worker::v1::Report&)>& fill) {
  worker::v1::WorkerMessage message;
  worker::v1::Report& report = *message.mutable_report();
  report.set_epoch(epoch);
  report.set_number(number);
  fill(report);
  return message;
}

// Three workers, and a job for two of them.
struct TwoOfThree {
  std::unique_ptr<World> world = [] {
    WorldOptions options;
    options.workers = 0;
    return MakeWorld(options);
  }();
  std::map<std::string, uint64_t> connections;
  std::string job;

  TwoOfThree() {
    for (const char* name : {"w0", "w1", "w2"}) {
      connections[name] = world->Connect(HelloOf(name, kPlenty));
    }
    world->AddModel("cut", 2);
    Job cut = World::NewJob();
    cut.set_base_model("cut");
    job = world->Submit(cut);
  }
  // Once there is one of another epoch.
  v1::Group Group(int64_t before = 0) {
    v1::ClusterStatus status;
    world->RunUntil([&] {
      status = world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
      return status.groups_size() == 1 && status.groups(0).epoch() != before;
    });
    REQUIRE(status.groups(0).stages_size() == 2);
    return status.groups(0);
  }
  void Beat(const std::vector<std::string>& workers, int64_t epoch) {
    worker::v1::WorkerMessage message;
    message.mutable_heartbeat()->set_epoch(epoch);
    for (const std::string& name : workers) world->Say(connections.at(name), message);
  }
  void Say(const v1::Group& group, int stage, int64_t number,
           const std::function<void(worker::v1::Report&)>& fill) {
    world->Say(connections.at(group.stages(stage).worker()), Saying(group.epoch(), number, fill));
  }
};

TEST_CASE("a stage whose memory others have rests, and its neighbour has another one") {
  const int short_one = GENERATE(0, 1);
  const bool neighbour_is_first = GENERATE(true, false);
  TwoOfThree house;
  const v1::Group first = house.Group();
  const auto formed = [](worker::v1::Report& report) {
    report.mutable_group_formed()->set_endpoint("192.0.2.1:5000");
  };
  INFO("stage " << short_one << ", its neighbour first: " << neighbour_is_first);
  if (neighbour_is_first) house.Say(first, 1 - short_one, 1, formed);
  house.Say(first, short_one, 1, [](worker::v1::Report& report) {
    report.mutable_group_failed()->set_reason("MEMORY_TAKEN");
    report.mutable_group_failed()->set_message("others have it");
  });
  if (!neighbour_is_first) house.Say(first, 1 - short_one, 1, formed);
  const v1::Group second = house.Group(first.epoch());
  std::set<std::string> has, wants = {"w0", "w1", "w2"};
  wants.erase(first.stages(short_one).worker());
  for (const auto& stage : second.stages()) has.insert(stage.worker());
  CHECK(has == wants);
  CHECK(IsLive(house.world->StateOf(house.job)));
}

TEST_CASE("who lives of a group keeps its stage, and so what it has loaded of it") {
  const int lost = GENERATE(0, 1);
  TwoOfThree house;
  const v1::Group first = house.Group();
  for (const int stage : {0, 1}) {
    house.Say(first, stage, 1, [](worker::v1::Report& report) {
      report.mutable_group_formed()->set_endpoint("192.0.2.1:5000");
    });
  }
  const v1::GroupStage& lives = first.stages(1 - lost);
  // Who is lost says nothing, until its lease has passed.
  const auto lasts = [&] {
    const auto status = house.world->Get<v1::ClusterStatus>(v1::GetClusterRequest());
    return status.groups_size() == 1 && status.groups(0).epoch() == first.epoch();
  };
  for (int i = 0; i < 60 && lasts(); ++i) {
    house.world->Sleep(kSecond);
    house.Beat({lives.worker(), "w2"}, first.epoch());
  }
  house.Beat({lives.worker()}, 0);  // it has let go of the group
  const v1::Group second = house.Group(first.epoch());
  CHECK(second.stages(1 - lost).worker() == lives.worker());
  CHECK(second.stages(1 - lost).first_block() == lives.first_block());
  CHECK(second.stages(lost).worker() == "w2");
}

TEST_CASE("workers that connect and lose each other before a microbatch make way for another") {
  TwoOfThree house;
  const std::unique_ptr<World>& world = house.world;
  const std::string& job = house.job;
  const v1::Group first = house.Group();
  int64_t number = 0;
  const auto both_say = [&](const std::function<void(worker::v1::Report&)>& fill) {
    ++number;
    for (const int stage : {0, 1}) house.Say(first, stage, number, fill);
  };
  both_say([](worker::v1::Report& report) {
    report.mutable_group_formed()->set_endpoint("192.0.2.1:5000");
  });
  both_say([](worker::v1::Report& report) { report.mutable_connected(); });
  both_say([](worker::v1::Report& report) {
    report.mutable_group_failed()->set_reason("STAGE_LOST");
    report.mutable_group_failed()->set_message("Connection timed out");
  });
  world->RunUntil([&] { return HasEvent(*world, job, "STAGE_LOST"); });
  const v1::Group second = house.Group(first.epoch());
  CHECK(std::ranges::count(second.stages(), "w2", &v1::GroupStage::worker) == 1);
}

}  // namespace
}  // namespace lorad::server
