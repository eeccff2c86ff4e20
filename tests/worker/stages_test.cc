// A model in stages, each with a worker of its own, in one process: whatever its cuts, the
// microbatches in flight, the transport and the company, an adapter gets the bits that one worker
// gives it.
#include "tests/worker/stages.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <map>

#include "storage/tensors/safetensors.h"
#include "tests/worker/harness.h"
#include "tests/worker/join_and_leave.h"
#include "tests/worker/mpi/site.h"
#include "tests/worker/rows.h"
#include "tests/worker/transport/fake_device.h"
#include "tests/worker/transport/fake_nccl_library.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/in_process.h"

namespace lorad::worker {
namespace {

// Three layers: six blocks.
std::string Untied() {
  return MakeRandomModel(std::filesystem::temp_directory_path() / "stages_model");
}
std::string Tied() {
  return MakeTiedRandomModel(std::filesystem::temp_directory_path() / "stages_tied");
}

Harness::Options Group(const std::string& model) {
  return {.model_path = model, .threads = 1, .capacity_tokens = 128, .longest_sequence = 100};
}

Harness::Options InStages(Harness::Options options, std::vector<int32_t> cuts, int32_t in_flight,
                          const InProcessOptions& transport = {}) {
  options.cuts = std::move(cuts);
  options.in_flight = in_flight;
  options.join = [transport](int stages) { return JoinInProcess(stages, transport); };
  return options;
}

TEST_CASE("one to four stages give one worker's bits, wherever the model is cut") {
  const std::vector<std::vector<int32_t>> cuts = {{3},    {1},       {5},      {2, 4},
                                                  {1, 2}, {1, 3, 5}, {1, 2, 3}};
  for (const std::string& model : {Untied(), Tied()}) {
    const Outcome one = JoinAndLeave(Group(model));
    REQUIRE(one.losses.at("small").size() == 5);
    for (const std::vector<int32_t>& cut : cuts) {
      INFO(model << ", " << cut.size() + 1 << " stages, the second from block " << cut[0] << " on");
      CheckEqual(JoinAndLeave(InStages(Group(model), cut, static_cast<int32_t>(cut.size()) + 1)),
                 one);
    }
  }
}

TEST_CASE("one worker's bits, whatever is in flight and computed again") {
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const int32_t in_flight : {1, 2, 3, 6}) {
    for (const auto recomputation :
         {v1::FormGroup::NOTHING, v1::FormGroup::PRODUCTS, v1::FormGroup::BLOCKS}) {
      INFO(in_flight << " in flight, computing " << v1::FormGroup::Recomputation_Name(recomputation)
                     << " again");
      Harness::Options options = InStages(Group(Untied()), {1, 4}, in_flight);
      options.recomputation = recomputation;
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

TEST_CASE("one worker's bits over transports that are late, slow and shuffled") {
  using Moment = InProcessOptions::Moment;
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const Moment moment : {Moment::kAtOnce, Moment::kAtLast, Moment::kShuffled}) {
    for (const int64_t delay_us_max : {0, 2000}) {
      for (const bool late : {false, true}) {
        INFO("moment " << static_cast<int>(moment) << ", at most " << delay_us_max << " us"
                       << (late ? ", on a late device" : ""));
        const InProcessOptions transport{
            .moment = moment, .delay_us_max = delay_us_max, .seed = 20261125};
        Harness::Options options = InStages(Group(Untied()), {2, 3}, 3, transport);
        options.late = late;
        CheckEqual(JoinAndLeave(options), one);
      }
    }
  }
}

TEST_CASE("one worker's bits where windows end without emptying the pipeline") {
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const std::vector<int32_t>& cut :
       std::vector<std::vector<int32_t>>{{3}, {1, 4}, {1, 2, 5}}) {
    for (const int32_t in_flight : {2, 4, 6}) {
      INFO(cut.size() + 1 << " stages, " << in_flight << " in flight");
      using Moment = InProcessOptions::Moment;
      Harness::Options options =
          InStages(Group(Untied()), cut, in_flight, {.moment = Moment::kShuffled, .seed = 3});
      options.runs_on = true;
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

void CheckOver(const OpenListener& open_listener) {
  for (const std::string& model : {Untied(), Tied()}) {
    const Outcome one = JoinAndLeave(Group(model));
    for (const std::vector<int32_t>& cut :
         std::vector<std::vector<int32_t>>{{3}, {1, 4}, {1, 2, 5}}) {
      INFO(model << ", " << cut.size() + 1 << " stages");
      Harness::Options options = InStages(Group(model), cut, 3);
      options.open_listener = open_listener;
      CheckEqual(JoinAndLeave(options), one);
    }
  }
}

TEST_CASE("one worker's bits over sockets") { CheckOver(ListenByASocket); }

TEST_CASE("one worker's bits over MPI") {
  MpiSite* site = MpiSite::Here();
  if (site == nullptr) return;
  CheckOver([site] { return site->Listen(); });
}

TEST_CASE("one worker's bits where tensors cross between devices, by any way") {
  const std::pair<const char*, TransportChoice> ways[] = {{"by peer", TransportChoice::kPeer},
                                                          {"by NCCL", TransportChoice::kNccl},
                                                          {"staged", TransportChoice::kSockets}};
  const Outcome one = JoinAndLeave(Group(Untied()));
  for (const std::vector<int32_t>& cut :
       std::vector<std::vector<int32_t>>{{3}, {1, 4}, {1, 2, 5}}) {
    for (const auto& [name, transport] : ways) {
      for (const OpenListener& open_listener : {OpenListener(), OpenListener(ListenByASocket)}) {
        INFO(cut.size() + 1 << " stages, " << name
                            << (open_listener ? ", sockets" : ", in process"));
        Harness::Options options = InStages(Group(Untied()), cut, 3);
        options.open_listener = open_listener;
        options.runs_on = true;
        options.transport = transport;
        options.make_copies = [] { return MakeFakeCopies(); };
        options.nccl = &FakeNcclLibrary();
        CheckEqual(JoinAndLeave(options), one);
      }
    }
  }
}

// ---- what goes wrong ----

// A shard whose first matrix of a layer has an infinite element.
std::string SpoiledIn(std::string shard, int layer) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto header = storage::ParseSafetensorsHeader(shard, shard.size());
  REQUIRE(header.ok());
  const std::string wanted = ".layers." + std::to_string(layer) + ".";
  for (const storage::TensorInfo& tensor : header->tensors) {
    if (tensor.name.find(wanted) == std::string::npos) continue;
    if (tensor.name.find("lora_B.weight") == std::string::npos) continue;
    std::memcpy(&shard[header->data_begin + tensor.begin], &infinity, sizeof(infinity));
    return shard;
  }
  FAIL("no matrix B in layer " << layer);
  return shard;
}

// A shard without the matrices of a layer: the stage that has it cannot load the slot.
std::string ShardWithout(const std::string& shard, int layer) {
  const std::string of_layer = ".layers." + std::to_string(layer) + ".";
  return PartOfShard(
      shard, [&](const std::string& name) { return name.find(of_layer) == std::string::npos; });
}

TestJob Victim() { return MakeJob("victim", 8, kAllTargets, RandomRows(12, 20, 100, 5), 3); }

std::string ShardAlone(TestJob job, int64_t steps) {
  Harness harness(Group(Untied()));
  harness.Form();
  harness.Load(job);
  while (job.step < steps) harness.Step({&job}, job.step + 1 == steps);
  return harness.Shard(job);
}

TEST_CASE("a job that is not finite on any stage fails alone; its neighbour keeps its bits") {
  const std::string shard = ShardAlone(Victim(), 1);
  const std::string want = ShardAlone(Jobs()[0], 3);
  for (const int layer : {0, 1, 2}) {  // the first stage, the second, the last
    INFO("layer " << layer);
    Harness harness(InStages(Group(Untied()), {2, 4}, 3));
    harness.Form();
    TestJob a = Jobs()[0];
    TestJob victim = Victim();
    harness.bulk.SetContent("spoiled", SpoiledIn(shard, layer));
    victim.content = "spoiled";
    victim.step = 1;
    harness.Load(a);
    harness.Load(victim);
    harness.Step({&a, &victim}, true);
    REQUIRE(harness.not_finite().size() == 1);
    CHECK(harness.not_finite()[0].job() == "victim");
    CHECK(harness.not_finite()[0].step() == 2);
    CHECK(harness.not_finite()[0].what() == "loss");
    CHECK(harness.not_finite()[0].sequences_size() == victim.batch);
    CHECK(harness.steps("victim").empty());
    harness.Step({&victim, &a}, true);  // what the coordinator had sent before it knew
    CHECK(harness.not_finite().size() == 1);
    harness.Free(victim);
    harness.Step({&a}, true);
    CHECK((harness.Shard(a) == want));
  }
}

TEST_CASE("a gradient that is not finite on one stage fails the job on all") {
  // Its losses are finite: nothing of the last layer's MLP reaches them but through a gradient.
  Harness harness(InStages(Group(Untied()), {2, 4}, 3));
  harness.Form();
  TestJob victim = Victim();
  TestJob a = Jobs()[0];
  victim.spec.set_scale(1e30);
  harness.Load(a);
  harness.Load(victim);
  harness.Step({&a, &victim}, true);
  REQUIRE(harness.not_finite().size() == 1);
  CHECK(harness.not_finite()[0].what() == "gradient norm");
  CHECK(harness.not_finite()[0].sequences().empty());
  CHECK((harness.Shard(a) == ShardAlone(Jobs()[0], 1)));
}

TEST_CASE("a validation loss that is not finite fails the job, and drops it with its next batch") {
  Harness harness(InStages(Group(Untied()), {2, 4}, 3));
  harness.Form();
  TestJob a = Jobs()[0];
  TestJob victim = Victim();
  harness.bulk.SetContent("spoiled", SpoiledIn(ShardAlone(Victim(), 1), 0));
  victim.content = "spoiled";
  victim.step = 1;
  harness.Load(a);
  harness.Load(victim);
  CHECK_THROWS(harness.Evaluate(victim, victim.rows));
  REQUIRE_FALSE(harness.not_finite().empty());
  CHECK(harness.not_finite()[0].what() == "validation loss");
  const size_t told = harness.not_finite().size();
  harness.Step({&a, &victim}, true);
  harness.Step({&victim, &a}, true);
  CHECK(harness.not_finite().size() == told);
  CHECK(harness.steps("victim").empty());
  CHECK((harness.Shard(a) == ShardAlone(Jobs()[0], 2)));
}

TEST_CASE("a slot that one stage cannot load is of no use to any; its neighbour keeps its bits") {
  const std::string shard = ShardAlone(Victim(), 1);
  for (const int layer : {0, 1, 2}) {
    INFO("layer " << layer);
    Harness harness(InStages(Group(Untied()), {2, 4}, 3));
    harness.Form();
    TestJob a = Jobs()[0];
    TestJob victim = Victim();
    harness.bulk.SetContent("part", ShardWithout(shard, layer));
    victim.content = "part";
    victim.step = 1;
    harness.Load(a);
    harness.Load(victim);
    REQUIRE(harness.slot_failed().size() == 1);
    CHECK(harness.slot_failed()[0].reason() == "CONTENT_INVALID");
    CHECK_THROWS(harness.Evaluate(victim, victim.rows));  // nothing is reported
    harness.Step({&a, &victim}, true);
    harness.Step({&a, &victim}, true);
    CHECK(harness.not_finite().empty());
    CHECK(harness.steps("victim").empty());
    CHECK((harness.Shard(a) == ShardAlone(Jobs()[0], 2)));
    harness.Free(victim);
    victim.content = "whole";
    victim.step = 1;
    harness.bulk.SetContent("whole", shard);
    harness.Load(victim);
    harness.Step({&victim}, true);
    CHECK((harness.Shard(victim) == ShardAlone(Victim(), 2)));
  }
}

TEST_CASE("a microbatch without loss rows passes through all stages") {
  std::vector<TestRow> rows = RandomRows(6, 90, 100, 7);  // one a microbatch
  for (const size_t untrained : {0, 1, 3}) {
    std::fill(rows[untrained].labels.begin(), rows[untrained].labels.end(), -100);
  }
  const TestJob job = MakeJob("job", 8, kAllTargets, rows, 3);
  const std::string want = ShardAlone(job, 2);
  Harness harness(InStages(Group(Untied()), {1, 4}, 3));
  harness.Form();
  TestJob in_stages = job;
  harness.Load(in_stages);
  harness.Step({&in_stages});
  harness.Step({&in_stages}, true);
  CHECK((harness.Shard(in_stages) == want));
}

TEST_CASE("a job goes on with the same bits on another number of stages") {
  const std::string want = ShardAlone(Victim(), 4);
  TestJob job = Victim();
  std::string shard;
  for (const std::vector<int32_t>& cuts :
       std::vector<std::vector<int32_t>>{{3}, {1, 2, 5}, {}, {2, 4}}) {
    Harness harness(InStages(Group(Untied()), cuts, 2));
    harness.Form();
    if (!shard.empty()) {
      harness.bulk.SetContent("shard", shard);
      job.content = "shard";
    }
    harness.Load(job);
    REQUIRE(harness.slot_failed().empty());
    if (!shard.empty()) {  // each stage has its own matrices, and no others, sent
      const auto headers = static_cast<int64_t>(cuts.size() + 1) * 20'000;
      CHECK(harness.bulk.fetched_bytes() < static_cast<int64_t>(shard.size()) + headers);
    }
    harness.Step({&job}, true);
    shard = harness.Shard(job);
  }
  CHECK((shard == want));
}

TEST_CASE("a job that is cut in mid-batch on all stages trains that batch again") {
  Harness harness(InStages(Group(Untied()), {2, 4}, 3));
  harness.Form();
  TestJob a = Jobs()[0];
  TestJob b = Victim();
  harness.Load(a);
  harness.Load(b);
  harness.Step({&a, &b});
  harness.Cut(5);  // held at its first Forward, so what runs is ours to say
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&a}, false, nullptr, &window);
  harness.AddSteps({&b}, false, nullptr, &window);
  const auto& microbatches = window.microbatches();
  const auto first_of_b = std::find_if(
      microbatches.begin(), microbatches.end(),
      [](const v1::Microbatch& microbatch) { return microbatch.segments(0).job() == "victim"; });
  const int64_t first_dropped = first_of_b->number() + 1;
  harness.Submit(window);
  harness.CutAt(5, first_dropped);
  harness.WaitIdle();
  harness.TakeReports();
  REQUIRE(harness.steps("small").size() == 2);
  REQUIRE(harness.steps("victim").size() == 1);
  b.step = 1;
  harness.Step({&a, &b}, true);
  CHECK((harness.Shard(a) == ShardAlone(Jobs()[0], 3)));
  CHECK((harness.Shard(b) == ShardAlone(Victim(), 2)));
}

TEST_CASE("a batch that is cut while rows of it are in flight leaves nothing in the sums") {
  Harness::Options options = InStages(Group(Untied()), {2, 4}, 3);
  options.runs_on = true;
  Harness harness(options);
  harness.Form();
  TestJob victim = Victim();
  harness.Load(victim);
  harness.Cut(5);  // held at its first Forward
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&victim}, false, nullptr, &window);
  REQUIRE(window.microbatches_size() >= 2);
  const int64_t first_dropped = window.microbatches(1).number();
  harness.Submit(window);
  harness.CutAt(5, first_dropped);
  harness.WaitIdle();
  // The first microbatch went forward on all stages, and back on the last one alone.
  REQUIRE(harness.left.size() == 2);
  for (planner::Place& place : harness.left) {
    place.ends.clear();
    if (place.number >= first_dropped) place.kind = planner::OperationKind::kNoop;
  }
  harness.Drain();
  victim.step = 0;
  harness.Step({&victim}, true);
  CHECK((harness.Shard(victim) == ShardAlone(Victim(), 1)));
}

TEST_CASE("a stage that goes ends the group on the others at once, with the reason") {
  Harness harness(InStages(Group(Untied()), {2, 4}, 3));
  harness.Form();
  TestJob a = Jobs()[0];
  harness.Load(a);
  v1::CoordinatorMessage message;
  message.mutable_dissolve_group()->set_epoch(1);
  harness.workers[2]->link.Tell(std::move(message));
  harness.workers[2]->driver->WaitIdle();
  v1::Window window = harness.NewWindow();
  harness.AddSteps({&a}, false, nullptr, &window);
  harness.Submit(window);
  harness.WaitIdle();
  std::vector<std::string> reasons;
  for (const v1::Report& report : harness.TakeReports()) {
    if (report.has_group_failed()) reasons.push_back(report.group_failed().reason());
  }
  CHECK(reasons == std::vector<std::string>{"STAGE_LOST", "STAGE_LOST"});
}

TEST_CASE("lists that do not meet end the group") {
  struct Case {
    const char* what;
    std::function<void(v1::Window*)> change;  // of the middle stage's window
    const char* message;
  };
  const auto swap_first = [](v1::Operation::Kind kind, bool gradient) {
    return [=](v1::Window* window) {
      for (int i = 0; i < window->operations_size(); ++i) {
        const v1::Operation& operation = window->operations(i);
        if (operation.kind() != kind || operation.gradient() != gradient) continue;
        return window->mutable_operations()->SwapElements(i, i - 1);
      }
    };
  };
  const Case cases[] = {
      {"peer", [](v1::Window* window) { window->mutable_operations(0)->set_peer(2); },
       "this is stage 1 of 3"},
      {"forward before its activations",
       [](v1::Window* window) { window->mutable_operations()->SwapElements(0, 1); },
       "not in flight"},
      {"sent before its forward", swap_first(v1::Operation::SEND, false), "without its Forward"},
      {"gradient sent before its backward", swap_first(v1::Operation::SEND, true),
       "without its Backward"},
      {"a length",
       [](v1::Window* window) {
         v1::Segment& segment = *window->mutable_microbatches(0)->mutable_segments(0);
         segment.set_tokens(segment.tokens() - 1);
       },
       "came over the border"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    Harness harness(InStages(Group(Untied()), {2, 4}, 2));
    harness.Form();
    TestJob a = Jobs()[0];
    harness.Load(a);
    v1::Window window = harness.NewWindow();
    harness.AddSteps({&a}, false, nullptr, &window);
    std::vector<v1::Window> windows = WindowsOfStages(window, 3, 2);
    c.change(&windows[1]);
    for (size_t stage = 0; stage < 3; ++stage) {
      v1::CoordinatorMessage message;
      *message.mutable_window() = windows[stage];
      harness.workers[stage]->link.Tell(std::move(message));
    }
    harness.workers[1]->driver->WaitIdle();
    const std::vector<v1::Report> reports = harness.workers[1]->link.TakeReports();
    REQUIRE_FALSE(reports.empty());
    REQUIRE(reports.back().has_group_failed());
    CHECK_THAT(reports.back().group_failed().message(), Catch::Contains(c.message));
    harness.WaitIdle();  // the others do not wait for ever
  }
}

}  // namespace
}  // namespace lorad::worker
