// The engine without arithmetic as several stages, each with its list, on a net that is late.
#include "tests/worker/stages.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "planner/window/order.h"
#include "storage/files/errors.h"
#include "tests/sim/worker/sim_engine.h"

namespace lorad::sim {
namespace {

using worker::v1::Operation;
using worker::v1::Window;

constexpr int64_t kDelayUs = 5'000;

// A stage with the part of its worker's core that carries out one list after the other.
class Stage {
 public:
  Stage(StageNet& net, int stage, int stages) {
    engine_ = std::make_unique<SimEngine>(
        SimEngine::Hooks{.report = [this](worker::v1::Report report) { reports.push_back(report); },
                         .fetch = [](const std::string&) -> absl::StatusOr<int64_t> { return 0; },
                         .net = &net},
        script);
    worker::FormGroup form;
    form.order.set_epoch(1);
    form.order.set_stage(stage);
    form.order.set_stages(stages);
    form.order.set_capacity_tokens(100);
    form.order.set_microbatches_in_flight(stages);
    engine_->CarryOut(form, [](const absl::StatusOr<bool>& done) { REQUIRE(done.ok()); });
  }

  std::string endpoint() const { return reports.front().group_formed().endpoint(); }
  void Join(const std::vector<std::string>& endpoints) {
    worker::Connect connect;
    connect.order.mutable_endpoints()->Add(endpoints.begin(), endpoints.end());
    engine_->CarryOut(connect, [this](const absl::StatusOr<bool>& done) { joined = done; });
  }
  void Give(const Window& window) {
    if (deaf) return;
    windows_.push_back(std::make_shared<const Window>(window));
    if (windows_.size() == 1) Begin();
  }
  void Die() { engine_.reset(); }
  SimEngine& engine() { return *engine_; }

  int Count(worker::v1::Report::ContentCase kind) const {
    return static_cast<int>(std::count_if(reports.begin(), reports.end(), [&](const auto& report) {
      return report.content_case() == kind;
    }));
  }
  bool idle() const { return windows_.empty(); }

  WorkerScript script;
  std::vector<worker::v1::Report> reports;
  absl::StatusOr<bool> joined = absl::UnknownError("it waits");
  absl::Status failure;
  int dropped = 0;
  bool deaf = false;  // is given no window

 private:
  void Begin() {
    next_ = 0;
    engine_->CarryOut(worker::BeginWindow{windows_.front()}, [](const auto&) {});
    GoOn();
  }
  void GoOn() {
    if (next_ == windows_.front()->operations_size()) {
      engine_->CarryOut(worker::EndWindow{}, [](const auto&) {});
      windows_.erase(windows_.begin());
      if (!windows_.empty()) Begin();
      return;
    }
    const auto operation = std::make_shared<const Operation>(windows_.front()->operations(next_++));
    engine_->CarryOut(worker::Execute{operation}, [this](const absl::StatusOr<bool>& done) {
      if (!done.ok()) {
        failure = done.status();
        return;
      }
      if (!*done) ++dropped;
      GoOn();
    });
  }

  std::unique_ptr<SimEngine> engine_;
  std::vector<std::shared_ptr<const Window>> windows_;
  int next_ = 0;
};

void Add(Window* window, Operation::Kind kind, const std::string& job, int64_t step) {
  Operation& operation = *window->add_operations();
  operation.set_kind(kind);
  operation.set_job(job);
  operation.set_step(step);
  if (kind == Operation::LOAD_SLOT) operation.mutable_slot()->set_job(job);
}

// Stages that are joined, and the windows of their jobs.
class Stages {
  Clockwork clock_;
  StageNet net_;  // outlives the stages

 public:
  Stages(int stages, uint64_t seed, bool join = true) : clock_(seed, kDelayUs), net_(clock_) {
    for (int stage = 0; stage < stages; ++stage) {
      all.push_back(std::make_unique<Stage>(net_, stage, stages));
      endpoints_.push_back(all.back()->endpoint());
    }
    if (!join) return;
    for (auto& stage : all) stage->Join(endpoints_);
    Run();
    for (auto& stage : all) REQUIRE((stage->joined.ok() && *stage->joined));
  }

  void Load(const std::vector<std::string>& jobs) {
    Window window;
    for (const std::string& job : jobs) Add(&window, Operation::LOAD_SLOT, job, 0);
    Send(window, true);
  }
  void Free(const std::string& job) {
    Window window;
    Add(&window, Operation::FREE_SLOT, job, 0);
    Send(window, true);
  }
  // A step of each job, of three microbatches with a row of each. The last one empties the
  // pipeline.
  void Step(const std::vector<std::string>& jobs, int64_t step, bool last) {
    Window window;
    for (int64_t row = 0; row < 3; ++row) {
      worker::v1::Microbatch& microbatch = *window.add_microbatches();
      microbatch.set_number(++microbatches_);
      for (const std::string& job : jobs) {
        worker::v1::Segment& segment = *microbatch.add_segments();
        segment.set_job(job);
        segment.set_mode(worker::v1::Segment::TRAIN);
        segment.set_step(step);
        segment.set_sequence(row);
        segment.mutable_input_ids()->Resize(10, 1);
        segment.mutable_labels()->Resize(10, 1);
      }
    }
    for (const std::string& job : jobs) {
      worker::v1::Batch& batch = *window.add_batches();
      batch.set_job(job);
      batch.set_step(step);
      batch.set_sequences(3);
      Add(&window, Operation::STEP, job, step);
    }
    Send(window, last);
  }

  void Join(size_t stage) { all[stage]->Join(endpoints_); }
  void Run() {
    while (clock_.RunNext()) {
    }
  }
  int64_t now_us() const { return clock_.now_us(); }

  std::vector<std::unique_ptr<Stage>> all;

 private:
  void Send(const Window& window, bool last) {
    const auto count = static_cast<int>(all.size());
    const planner::PlacesInFlight before = std::exchange(left_, {});
    const std::vector<Window> windows =
        worker::WindowsOfStages(window, count, count, before, last ? nullptr : &left_);
    for (size_t stage = 0; stage < all.size(); ++stage) all[stage]->Give(windows[stage]);
  }

  std::vector<std::string> endpoints_;
  planner::PlacesInFlight left_;
  int64_t microbatches_ = 0;
};

using storage::ReasonOf;
using worker::v1::Report;

TEST_CASE("stages take the steps of windows that run on, however late what they send is") {
  for (const int count : {2, 3, 4}) {
    for (uint64_t seed = 1; seed <= 20; ++seed) {
      INFO(count << " stages, seed " << seed);
      Stages stages(count, seed);
      stages.Load({"a", "b"});
      for (int64_t step = 1; step <= 4; ++step) stages.Step({"a", "b"}, step, step == 4);
      stages.Run();
      for (const auto& stage : stages.all) {
        CHECK(stage->idle());
        CHECK(stage->Count(Report::kMicrobatchDone) == 12);
        CHECK(stage->Count(Report::kStepDone) == (stage == stages.all.back() ? 8 : 0));
      }
    }
  }
}

TEST_CASE("what is not finite fails on all stages, and the last one says so") {
  Stages stages(3, 1);
  for (auto& stage : stages.all) stage->script.bad_steps["b"] = 2;
  stages.Load({"a", "b"});
  for (int64_t step = 1; step <= 3; ++step) stages.Step({"a", "b"}, step, step == 3);
  stages.Run();
  for (const auto& stage : stages.all) {
    CHECK(stage->idle());
    CHECK(stage->dropped > 0);
    CHECK(stage->Count(Report::kNotFinite) == (stage == stages.all.back() ? 1 : 0));
  }
  CHECK(stages.all.back()->Count(Report::kStepDone) == 3 + 1);
}

TEST_CASE("a slot that one stage cannot load takes no step on any, and is freed on all") {
  for (size_t without = 0; without < 3; ++without) {
    INFO("stage " << without);
    Stages stages(3, 1);
    stages.Load({"a"});
    stages.Run();
    stages.all[without]->script.memory_taken = true;
    stages.Load({"b"});
    stages.Step({"a", "b"}, 1, true);
    stages.Free("b");
    stages.Run();
    for (const auto& stage : stages.all) {
      CHECK(stage->idle());
      CHECK(stage->Count(Report::kSlotFreed) == 1);
      CHECK(stage->Count(Report::kNotFinite) == 0);
    }
    CHECK(stages.all[without]->Count(Report::kSlotFailed) == 1);
    CHECK(stages.all.back()->Count(Report::kStepDone) == 1);
  }
}

TEST_CASE("a stage that dies or is interrupted ends the waits of all others") {
  for (const bool dies : {true, false}) {
    for (size_t victim = 0; victim < 3; ++victim) {
      INFO("stage " << victim << (dies ? " dies" : " is interrupted"));
      Stages stages(3, 1);
      stages.Load({"a"});
      stages.Run();
      stages.all[victim]->deaf = true;
      stages.Step({"a"}, 1, true);
      stages.Run();
      const int64_t begun_us = stages.now_us();
      dies ? stages.all[victim]->Die() : stages.all[victim]->engine().Interrupt();
      stages.Run();
      CHECK(stages.now_us() - begun_us < 3 * kDelayUs);
      for (size_t stage = 0; stage < 3; ++stage) {
        if (stage != victim) CHECK(ReasonOf(stages.all[stage]->failure) == "STAGE_LOST");
      }
    }
  }
}

TEST_CASE("what is given up is not waited for, and the next tensor comes") {
  Clockwork clock(1, kDelayUs);
  StageNet net(clock);
  SimStage first(net, {}, 1, 0, 2), second(net, {}, 1, 1, 2);
  const auto run = [&] {
    while (clock.RunNext()) {
    }
  };
  const std::vector<std::string> endpoints = {first.endpoint(), second.endpoint()};
  for (SimStage* stage : {&first, &second}) {
    stage->Join(endpoints, [](const absl::StatusOr<bool>& done) { REQUIRE(done.ok()); });
  }
  run();
  std::set<std::string> lost;
  std::vector<bool> received;
  const auto receive = [&](int64_t microbatch) {
    second.Receive(false, microbatch, &lost, [&](const absl::StatusOr<bool>& done) {
      REQUIRE(done.ok());
      received.push_back(*done);
    });
  };
  receive(1);
  run();
  CHECK(received.empty());
  second.GiveUpReceive();
  CHECK(received == std::vector<bool>{false});
  receive(2);
  first.Send(false, 2, {"a"}, [](const absl::StatusOr<bool>& done) { REQUIRE(done.ok()); });
  run();
  CHECK(received == std::vector<bool>{false, true});
  CHECK(lost == std::set<std::string>{"a"});
}

// Two stages that are joined, on workers of their own.
struct Pair {
  Pair() {
    const std::vector<std::string> endpoints = {first.endpoint(), second.endpoint()};
    for (SimStage* stage : {&first, &second}) {
      stage->Join(endpoints, [](const absl::StatusOr<bool>& done) { REQUIRE(done.ok()); });
    }
    while (clock.RunNext()) {
    }
  }

  // When the second stage has received what the first one sends now, or has lost it.
  int64_t SendOne(absl::StatusOr<bool>* received) {
    const int64_t begun_us = clock.now_us();
    int64_t end_us = -1;
    std::set<std::string> lost;
    second.Receive(false, 1, &lost, [&](const absl::StatusOr<bool>& done) {
      *received = done;
      end_us = clock.now_us();
    });
    first.Send(false, 1, {}, [](const auto&) {});
    while (end_us < 0 && clock.RunNext()) {
    }
    return end_us - begun_us;
  }

  Clockwork clock{1, kDelayUs};
  StageNet net{clock};
  SimStage first{net, {"a"}, 1, 0, 2}, second{net, {"b"}, 1, 1, 2};
};

TEST_CASE("what stages send over a link that is cut or slow comes later, or they lose each other") {
  absl::StatusOr<bool> received = absl::UnknownError("nothing yet");
  SECTION("a moment") {
    Pair pair;
    pair.net.Cut("b", "a", 3'000'000);
    const int64_t took_us = pair.SendOne(&received);
    CHECK(received.ok());
    CHECK(took_us >= 3'000'000);
    CHECK(took_us < 3'000'000 + 2 * kDelayUs);
  }
  SECTION("longer than TCP has patience") {
    Pair pair;
    pair.net.Cut("a", "b", 30'000'000);
    const int64_t took_us = pair.SendOne(&received);
    CHECK(ReasonOf(received.status()) == "STAGE_LOST");
    CHECK(took_us == 10'000'000);
  }
  SECTION("only tensors, for a moment") {
    Pair pair;
    pair.net.Narrow("b", "a", 3'000'000);
    const int64_t took_us = pair.SendOne(&received);
    CHECK(received.ok());
    CHECK(took_us >= 3'000'000);
    CHECK(took_us < 3'000'000 + 2 * kDelayUs);
  }
  SECTION("only tensors, for longer than TCP has patience: the sender says so") {
    Pair pair;
    pair.net.Narrow("a", "b", 30'000'000);
    const int64_t took_us = pair.SendOne(&received);
    CHECK(ReasonOf(received.status()) == "STAGE_LOST");
    CHECK(received.status().message() == "stage 0 is gone");
    CHECK(took_us >= 10'000'000);
    CHECK(took_us < 10'000'000 + kDelayUs);
  }
  SECTION("a link of others") {
    Pair pair;
    pair.net.Cut("a", "c", 30'000'000);
    CHECK(pair.SendOne(&received) < 2 * kDelayUs);
    CHECK(received.ok());
  }
  SECTION("slow") {
    Pair pair;
    pair.net.Slow("a", "b", 5'000'000, 1'000'000);
    const int64_t took_us = pair.SendOne(&received);
    CHECK(received.ok());
    CHECK(took_us > 2 * kDelayUs);
    CHECK(took_us < 5'000'000 + kDelayUs);
  }
}

TEST_CASE("stages join, and send notes, over a link that no tensor passes") {
  Clockwork clock(1, kDelayUs);
  StageNet net(clock);
  net.Narrow("a", "b", 3'600'000'000);
  SimStage first(net, {"a"}, 1, 0, 2), second(net, {"b"}, 1, 1, 2);
  int joined = 0, noted = 0;
  for (SimStage* stage : {&first, &second}) {
    stage->Join({first.endpoint(), second.endpoint()},
                [&](const absl::StatusOr<bool>& done) { joined += done.ok() ? 1 : 0; });
  }
  while (joined < 2 && clock.RunNext()) {
  }
  REQUIRE(joined == 2);
  first.SendNote(1, {});
  second.AwaitNote(0, [&](const auto& note) { noted += note.ok() ? 1 : 0; });
  while (clock.RunNext()) {
  }
  CHECK(noted == 1);
}

TEST_CASE("a stage that is not joined in time, or is not there, is lost") {
  Stages late(2, 1, false);
  late.Join(0);
  late.Run();
  CHECK(absl::IsDeadlineExceeded(late.all[0]->joined.status()));
  CHECK(ReasonOf(late.all[0]->joined.status()) == "STAGE_LOST");
  late.Join(1);
  late.Run();
  CHECK_FALSE(late.all[1]->joined.ok());
}

}  // namespace
}  // namespace lorad::sim
