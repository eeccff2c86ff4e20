// Windows of several stages that follow one another without emptying the pipeline, cut anywhere:
// what is kept is the same on all stages, what is lost is trained again, and every adapter has the
// bits of one worker that nobody has cut.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <map>
#include <random>
#include <thread>

#include "tests/worker/harness.h"
#include "tests/worker/rows.h"
#include "tests/worker/transport/join.h"
#include "worker/transport/in_process.h"

namespace lorad::worker {
namespace {

constexpr int64_t kSteps = 4;

Harness::Options Group(std::vector<int32_t> cuts = {}, int32_t in_flight = 1) {
  Harness::Options options{
      .model_path = MakeRandomModel(std::filesystem::temp_directory_path() / "stages_cut"),
      .threads = 1,
      .capacity_tokens = 128,
      .longest_sequence = 100,
      .cuts = std::move(cuts),
      .in_flight = in_flight};
  options.runs_on = !options.cuts.empty();
  return options;
}

// "long" is there throughout; "leaves" is freed in the window in which "joins" is loaded.
TestJob Job(const std::string& name) {
  if (name == "long") {
    return MakeJob(name, 8, {"q_proj", "down_proj"}, RandomRows(16, 20, 100, 1), 4);
  }
  const uint64_t seed = name == "leaves" ? 2 : 3;
  return MakeJob(name, 4, {"q_proj", "gate_proj"}, RandomRows(12, 20, 100, seed), 3);
}

// The shard of a job that one worker has trained alone.
const std::string& Alone(const std::string& name, int64_t steps) {
  static auto* const known = new std::map<std::pair<std::string, int64_t>, std::string>;
  std::string& shard = (*known)[{name, steps}];
  if (!shard.empty()) return shard;
  Harness harness(Group());
  harness.Form();
  TestJob job = Job(name);
  harness.Load(job);
  while (job.step < steps) harness.Step({&job}, job.step + 1 == steps);
  return shard = harness.Shard(job);
}

// Plays the coordinator: sends windows ahead, cuts them, and goes on from what was kept.
class Pipeline {
 public:
  explicit Pipeline(const Harness::Options& options) : harness_(options) {
    harness_.Form();
    for (TestJob* job : {&long_, &leaves_}) harness_.Load(*job);
    harness_.Step({&long_, &leaves_});
  }

  // One or two windows: a step of both jobs, which is the last of one of them; and the third job
  // takes its place. Their microbatches' numbers.
  std::vector<int64_t> SendAhead(int windows) {
    v1::Window first = harness_.NewWindow();
    harness_.AddSteps({&leaves_, &long_}, true, nullptr, &first);
    Send(first);
    if (windows == 2) {
      v1::Window second = harness_.NewWindow();
      *second.add_operations() = Op(v1::Operation::FREE_SLOT, "leaves", 0);
      AddLoad(&second);
      harness_.AddSteps({&long_, &joins_}, false, nullptr, &second);
      Send(second);
    }
    std::vector<int64_t> numbers;
    for (const v1::Window& window : sent_) {
      for (const v1::Microbatch& microbatch : window.microbatches()) {
        numbers.push_back(microbatch.number());
      }
    }
    return numbers;
  }

  // Holds the first stage at its first Forward.
  void Hold() { harness_.Cut(++cut_); }
  // The smallest microbatch that the first stage has not begun.
  int64_t Ask() { return harness_.Cut(++cut_).first_not_enqueued(); }

  void CutAt(int64_t first_dropped) {
    harness_.CutAt(cut_, first_dropped);
    harness_.WaitIdle();
    CheckReports(harness_.TakeReports(), first_dropped);
    for (planner::Place& place : harness_.left) {
      if (place.number >= first_dropped) place.kind = planner::OperationKind::kNoop;
      std::erase_if(place.ends,
                    [&](const planner::BatchEnd& end) { return end.step > JobOf(end.job).step; });
    }
  }

  // Trains what is left, and compares.
  void Finish() {
    while (Next()) {
    }
    for (TestJob* job : {&long_, &leaves_, &joins_}) {
      const int64_t last = LastStep(*job);
      INFO(job->name());
      CHECK((harness_.Shard(*job) == Alone(job->name(), last)));
      const std::vector<v1::StepDone>& steps = harness_.steps(job->name());
      REQUIRE(static_cast<int64_t>(steps.size()) == last);  // none is taken twice
      for (int64_t step = 1; step <= last; ++step) {
        CHECK(steps[static_cast<size_t>(step) - 1].step() == step);
      }
    }
  }

  void FreeAtOnce() {
    harness_.Free(long_);
    long_.step = LastStep(long_);
  }
  void CheckOthers() {
    while (Next()) {
    }
    for (TestJob* job : {&leaves_, &joins_}) {
      CHECK((harness_.Shard(*job) == Alone(job->name(), LastStep(*job))));
    }
  }
  bool LongIsLost() const { return long_.step == 1; }

 private:
  static int64_t LastStep(const TestJob& job) { return job.name() == "long" ? kSteps : 2; }
  TestJob& JobOf(const std::string& name) {
    return name == "long" ? long_ : name == "leaves" ? leaves_ : joins_;
  }

  void AddLoad(v1::Window* window) {
    v1::Operation& load = *window->add_operations();
    load = Op(v1::Operation::LOAD_SLOT, "joins", 0);
    *load.mutable_slot() = joins_.spec;
  }

  void Send(const v1::Window& window) {
    sent_.push_back(window);
    harness_.Submit(window);
  }

  // What the cut has taken of the windows that were sent, by its rule alone, must be what the
  // stages report.
  void CheckReports(const std::vector<v1::Report>& reports, int64_t first_dropped) {
    std::map<std::string, int64_t> loaded, freed;
    for (const v1::Report& report : reports) {
      REQUIRE_FALSE(report.has_group_failed());
      if (report.has_slot_loaded()) ++loaded[report.slot_loaded().job()];
      if (report.has_slot_freed()) ++freed[report.slot_freed().job()];
    }
    for (const v1::Window& window : sent_) TakeBack(window, first_dropped);
    const auto stages = static_cast<int64_t>(harness_.workers.size());
    left_ = sent_.size() == 2 && leaves_.step == 2;
    joined_ = left_ && sent_.back().microbatches(0).number() < first_dropped;
    CHECK(freed["leaves"] == (left_ ? stages : 0));
    CHECK(loaded["joins"] - freed["joins"] == (joined_ ? stages : 0));
    sent_.clear();
  }

  // A batch with a microbatch that was dropped is to be trained again.
  void TakeBack(const v1::Window& window, int64_t first_dropped) {
    for (const v1::Microbatch& microbatch : window.microbatches()) {
      if (microbatch.number() < first_dropped) continue;
      for (const v1::Segment& segment : microbatch.segments()) {
        TestJob& job = JobOf(segment.job());
        job.step = std::min(job.step, segment.step() - 1);
      }
    }
  }

  // False: nothing is left to train.
  bool Next() {
    if (leaves_.step == 2 && long_.step == kSteps && joins_.step == 2) return false;
    v1::Window window = harness_.NewWindow();
    std::vector<TestJob*> jobs;
    if (leaves_.step < 2) jobs.push_back(&leaves_);
    if (long_.step < kSteps) jobs.push_back(&long_);
    if (leaves_.step == 2 && !left_) {
      *window.add_operations() = Op(v1::Operation::FREE_SLOT, "leaves", 0);
      left_ = true;
    }
    if (left_ && !joined_) {
      AddLoad(&window);
      joined_ = true;
    }
    if (joined_ && joins_.step < 2) jobs.push_back(&joins_);
    harness_.AddSteps(jobs, true, nullptr, &window);
    harness_.Run(std::move(window));
    return true;
  }

  Harness harness_;
  TestJob long_ = Job("long");
  TestJob leaves_ = Job("leaves");
  TestJob joins_ = Job("joins");
  bool left_ = false;
  bool joined_ = false;
  int64_t cut_ = 0;
  std::vector<v1::Window> sent_;
};

using Moment = InProcessOptions::Moment;

Harness::Options Shuffled(Harness::Options options, uint64_t seed) {
  options.join = [seed](int stages) {
    return JoinInProcess(stages, {.moment = Moment::kShuffled, .delay_us_max = 200, .seed = seed});
  };
  return options;
}

const std::vector<std::vector<int32_t>> kCuts = {{3}, {1, 4}, {1, 2, 5}};

TEST_CASE("windows that run on are cut before each of their microbatches") {
  for (const std::vector<int32_t>& cuts : kCuts) {
    const auto stages = static_cast<int32_t>(cuts.size()) + 1;
    for (const int windows : {1, 2}) {
      for (size_t index = 0;; ++index) {
        Pipeline pipeline(Shuffled(Group(cuts, stages), index));
        pipeline.Hold();
        std::vector<int64_t> numbers = pipeline.SendAhead(windows);
        numbers.push_back(numbers.back() + 1);  // all of them are kept
        if (index == numbers.size()) break;
        INFO(stages << " stages, " << windows << " windows, the first dropped is " << index);
        pipeline.CutAt(numbers[index]);
        pipeline.Finish();
      }
    }
  }
}

TEST_CASE("windows that run on are cut where the first stage has come to") {
  const uint64_t seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  for (int i = 0; i < 24; ++i) {
    const std::vector<int32_t>& cuts = kCuts[static_cast<size_t>(i) % kCuts.size()];
    const auto in_flight = static_cast<int32_t>(2 + random() % 4);
    Harness::Options options = Group(cuts, in_flight);
    if (i % 2 == 0) options.open_listener = ListenByASocket;
    INFO("history " << i << ", " << in_flight << " in flight");
    Pipeline pipeline(options.open_listener ? options : Shuffled(options, random()));
    pipeline.SendAhead(1 + static_cast<int>(random() % 2));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    pipeline.CutAt(pipeline.Ask());
    pipeline.Finish();
  }
}

TEST_CASE("a job whose batch was cut leaves while rows of it are in flight") {
  for (const std::vector<int32_t>& cuts : kCuts) {
    for (size_t index = 1;; ++index) {
      Pipeline pipeline(Shuffled(Group(cuts, 4), index));
      pipeline.Hold();
      const std::vector<int64_t> numbers = pipeline.SendAhead(1);
      if (index == numbers.size()) break;
      INFO(cuts.size() + 1 << " stages, the first dropped is " << index);
      pipeline.CutAt(numbers[index]);
      if (!pipeline.LongIsLost()) continue;
      pipeline.FreeAtOnce();
      pipeline.CheckOthers();
    }
  }
}

}  // namespace
}  // namespace lorad::worker
