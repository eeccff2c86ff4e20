// Groups of several workers: planner/schedule/schedule.h.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "planner/schedule/foresee.h"
#include "planner/stages/blocks.h"
#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

constexpr DeviceShape kCpu = {.threads = 2};

// As small models on two CPUs have it.
GroupShape ShapeOnTwo() {
  GroupShape shape{1024, 100, kCpu};
  shape.recomputation = Recomputation::kBlocks;
  shape.in_flight = 2;
  return shape;
}

// What a worker has: two of them hold SmolLM2 with four jobs, none does alone.
int64_t HalfBudget() {
  const GroupShape shape = ShapeOnTwo();
  int64_t bytes = 0;
  for (const StageRange range : {StageRange{0, 28}, StageRange{28, 60}}) {
    bytes = std::max(bytes, BytesOfGroup(SmolLm2(), shape, range).total() +
                                4 * BytesOfSlot(SmolLm2(), Rank(64), kCpu, range).total());
  }
  return bytes + bytes * 2 / 100 + 1;
}

WorkerView Node(const std::string& name, const std::string& host = "h",
                const std::string& numerics = "n") {
  WorkerView worker{name, HalfBudget(), kCpu, true};
  worker.numerics_id = numerics;
  worker.host = host;
  return worker;
}

QueuedJob Wide(const std::string& name, int64_t arrival = 100, int32_t priority = 0) {
  QueuedJob job = Job(name, priority, 0, "", 64, arrival);
  job.base_model = "large";
  return job;
}

// One that a worker holds alone.
QueuedJob Narrow(const std::string& name, int64_t arrival = 100, int32_t priority = 0) {
  QueuedJob job = Wide(name, arrival, priority);
  job.base_model = "small";
  ModelShape model = SmolLm2();
  model.layers = 8;
  job.model = Shared(model);
  return job;
}

GroupView On(const std::string& name, const std::vector<std::string>& workers,
             const std::vector<QueuedJob>& jobs, const QueuedJob& like) {
  GroupView group;
  group.name = name;
  group.base_model = like.base_model;
  group.model = like.model;
  group.shape = GroupShape{1024, 100, kCpu};
  group.budget_bytes = HalfBudget();
  group.open = true;
  group.worker = workers[0];
  if (workers.size() > 1) {
    group.shape = ShapeOnTwo();
    group.stages = {{workers[0], {0, 28}, HalfBudget()}, {workers[1], {28, 60}, HalfBudget()}};
  }
  for (const QueuedJob& job : jobs) {
    group.jobs.push_back(job.job);
    group.adapters.push_back(job.adapter);
    group.running.push_back({.priority = job.priority,
                             .arrival = job.arrival,
                             .running_s = 10,
                             .longest_sequence = job.longest_sequence,
                             .step_tokens = 200});
  }
  return group;
}

WorkerView Busy(WorkerView worker) {
  worker.idle = false;
  return worker;
}

ClusterView Of(std::vector<WorkerView> workers, std::vector<GroupView> groups,
               std::vector<QueuedJob> queue) {
  ClusterView view;
  view.workers = std::move(workers);
  view.groups = std::move(groups);
  view.queue = std::move(queue);
  return view;
}

std::string First(const ClusterView& view) { return ToText(Schedule(view).at(0)); }

TEST_CASE("A job that fits no worker alone has a group on several idle ones") {
  REQUIRE(!FitsAlone(Wide("a"), kCpu, HalfBudget(), 0));
  REQUIRE(FitsAlone(Narrow("a"), kCpu, HalfBudget(), 0));
  CHECK(Text(Of({Node("u"), Node("v")}, {}, {Wide("a"), Wide("b", 101)})) ==
        "form u 0-37 | v 38-59 base=large 1024/100 recomputing blocks: a b\n");
  // A worker that could hold it alone is there, though it is not idle: it waits for that.
  WorkerView big = Busy(Node("big"));
  big.budget_bytes = kBig;
  CHECK(First(Of({Node("u"), Node("v"), big}, {}, {Wide("a")})).substr(0, 7) == "wait #1");
  // It joins a group of several.
  CHECK(Text(Of({Busy(Node("u")), Busy(Node("v"))}, {On("g", {"u", "v"}, {Wide("x")}, Wide("x"))},
                {Wide("a")})) == "admit g: a\n");
  // The group is formed as said, though one worker would do.
  QueuedJob registered = Narrow("a");
  registered.stages = 2;
  CHECK(First(Of({Node("u"), Node("v"), Node("w")}, {}, {registered})).substr(0, 16) ==
        "form u 0-14 | v ");
  registered.stages = 1;
  CHECK(First(Of({Node("u"), Node("v")}, {}, {registered})) == "form u base=small 1024/100: a");
}

// How many groups are formed until one is joined, where none that has `bad` as a stage but the last
// can be.
int AttemptsUntilJoined(std::vector<WorkerView> workers, const std::string& bad) {
  for (int attempt = 1; attempt <= 10; ++attempt) {
    const Decision decision = Schedule(Of(workers, {}, {Wide("a")})).at(0);
    REQUIRE(decision.stages.size() == 2);
    if (decision.stages[0].worker != bad) return attempt;
    for (WorkerView& worker : workers) {
      if (worker.name == decision.stages[0].worker || worker.name == decision.stages[1].worker) {
        ++worker.joins_failed;
      }
    }
  }
  return 0;
}

TEST_CASE("A worker that others cannot reach is left for those that have joined a group") {
  CHECK(AttemptsUntilJoined({Node("a"), Node("u"), Node("v")}, "a") == 3);
  CHECK(AttemptsUntilJoined({Node("a"), Node("u"), Node("v"), Node("w")}, "a") == 2);
  // It is taken where nobody else is there, for it may be reached by now.
  CHECK(AttemptsUntilJoined({Node("a"), Node("u")}, "a") == 0);
  WorkerView failed = Node("a");
  failed.joins_failed = 3;
  CHECK(First(Of({failed, Node("u"), Node("v")}, {}, {Wide("x")})).substr(0, 7) == "form u ");
}

TEST_CASE("A job joins GPUs of two hosts where there is room beside NCCL") {
  const DeviceShape gpu{.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2};
  GroupShape shape = ShapeOnTwo();
  shape.device = gpu;
  const std::vector<StageRange> ranges = {{0, 28}, {28, 60}};
  int64_t two_jobs = 0;
  for (const StageRange& range : ranges) {
    two_jobs = std::max(two_jobs, BytesOfGroup(SmolLm2(), shape, range).total() +
                                      2 * BytesOfSlot(SmolLm2(), Rank(64), gpu, range).total());
  }
  const auto what = [&](const std::string& second_host, int64_t budget) {
    std::vector<WorkerView> workers = {Busy(Node("u")), Busy(Node("v", second_host))};
    GroupView group = On("g", {"u", "v"}, {Wide("x")}, Wide("x"));
    group.shape = shape;
    for (size_t s = 0; s < workers.size(); ++s) {
      workers[s].device = gpu;
      workers[s].budget_bytes = budget;
      group.stages[s] = {workers[s].name, ranges[s], budget};
    }
    return First(Of(workers, {group}, {Wide("a")}));
  };
  CHECK(what("h", two_jobs * 103 / 100) == "admit g: a");
  CHECK(what("g", two_jobs * 103 / 100) != "admit g: a");
  CHECK(what("g", (two_jobs + BytesOfNccl(1)) * 103 / 100) == "admit g: a");
}

TEST_CASE("Why a job that needs several workers waits") {
  const auto why = [](const ClusterView& view) { return Schedule(view).at(0).why; };
  QueuedJob three = Narrow("a");
  three.stages = 3;
  CHECK(why(Of({Node("u"), Node("v")}, {}, {three})) ==
        "its base model is registered for 3 stages, and no 3 workers of one numerics id and "
        "transport are connected");
  const std::string needs = why(
      Of({Node("u"), Busy(Node("v"))}, {On("g", {"v"}, {Narrow("x")}, Narrow("x"))}, {Wide("a")}));
  CHECK(
      needs.starts_with("needs 2 workers of one numerics id, the tightest of whose stages takes "));
  CHECK(needs.ends_with(" bytes: 1 is idle; waits until the jobs of group g have ended"));
  CHECK(why(Of({Node("u"), Busy(Node("v"))}, {}, {Wide("a")}))
            .ends_with(" bytes: some of these take no jobs now"));
  WorkerView u = Node("u"), v = Node("v");
  u.budget_bytes = v.budget_bytes = HalfBudget() / 8;
  const std::string nowhere = why(Of({u, v}, {}, {Wide("a")}));
  CHECK(nowhere.starts_with("needs "));
  CHECK(nowhere.find("of 2 stages the tightest needs ") != std::string::npos);
}

TEST_CASE("What a waiting job needs is kept from those behind it") {
  const GroupView busy = On("g", {"v"}, {Narrow("x")}, Narrow("x"));
  const std::vector<WorkerView> workers = {Node("u"), Busy(Node("v"))};
  // Neither the idle worker nor a place in the group that drains.
  const std::string text = Text(Of(workers, {busy}, {Wide("a", 1), Narrow("b", 2)}));
  CHECK(text.find("wait #1: a") == 0);
  CHECK(text.find("wait #2: b (behind job a, for which group g is draining)") != std::string::npos);
  // Who is ahead has both.
  CHECK(First(Of(workers, {busy}, {Wide("a", 3), Narrow("b", 2)})).find("wait") != 0);
  // The group is empty: it makes way.
  CHECK(First(Of(workers, {On("g", {"v"}, {}, Narrow("x"))}, {Wide("a", 1), Narrow("b", 2)})) ==
        "dissolve #1 g: a");
  // A third worker is nobody's need.
  CHECK(Text(Of({Node("u"), Busy(Node("v")), Node("w", "h", "other")}, {busy},
                {Wide("a", 1), Narrow("b", 2)}))
            .find("form w base=small 1024/100: b") != std::string::npos);
  // One worker of a group of several is enough for a job that needs one: it drains for that too.
  CHECK(Text(Of({Busy(Node("u")), Busy(Node("v"))}, {On("g", {"u", "v"}, {Wide("x")}, Wide("x"))},
                {Narrow("a", 1), Wide("b", 2)}))
            .find("behind job a") != std::string::npos);
  CHECK(First(Of({Busy(Node("u")), Busy(Node("v"))}, {On("g", {"u", "v"}, {}, Wide("x"))},
                 {Narrow("a", 1)})) == "dissolve #1 g: a");
}

TEST_CASE("Several workers have room for microbatches as long as fit, whatever the steps") {
  DeviceShape gpu{.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2};
  const auto capacity = [&](int64_t step_tokens, int32_t stages, int64_t gib) {
    std::vector<WorkerView> workers;
    for (int32_t i = 0; i < stages; ++i) {
      WorkerView worker{"w" + std::to_string(i), gib << 30, gpu, true};
      worker.numerics_id = "n";
      workers.push_back(worker);
    }
    QueuedJob job{"a", "m", Shared(Llama8B()), 0, 1, 1024, {16, {"q_proj", "v_proj"}}};
    job.stages = stages;
    job.step_tokens = step_tokens;
    const Decision decision = Schedule(Of(workers, {}, {job})).at(0);
    REQUIRE(decision.kind == Decision::Kind::kFormGroup);
    REQUIRE(decision.shape.in_flight == stages);
    REQUIRE(decision.shape.recomputation == Recomputation::kNothing);
    return decision.shape.capacity_tokens;
  };
  for (const int64_t step_tokens : {1024, 4 * 1024, 32 * 1024}) {
    CHECK(capacity(step_tokens, 2, 78) == 8192);
    CHECK(capacity(step_tokens, 4, 78) == 8192);
    CHECK(capacity(step_tokens, 2, 39) == 4096);
    CHECK(capacity(step_tokens, 4, 19) == 2048);
  }
}

TEST_CASE("A step that no other overlaps fills the stages and drains them") {
  CHECK(FillAndDrainFactor(0, 1024, 2) == 2);
  CHECK(FillAndDrainFactor(1024, 1024, 4) == 4);
  CHECK(FillAndDrainFactor(1025, 1024, 2) == 1.5);
  CHECK(FillAndDrainFactor(8192, 8192, 2) == 1.125);  // cut to eight
  CHECK(FillAndDrainFactor(1000, 100, 3) == 1.2);
  CHECK(FillAndDrainFactor(1000, 100, 1) == 1);
}

TEST_CASE("A pipeline is as fast as its slowest stage lets it be") {
  ClusterView view = Timed({}, {});
  view.times[{"large", "slow"}] = {100, 1, 0};
  QueuedJob job = Wide("a");
  job.remaining_steps = 10;
  for (const char* name : {"u", "v"}) {
    view.workers.push_back(Node(name));
    view.workers.back().device_name = "slow";
  }
  view.queue = {job};
  const double share = SlowestShare(SmolLm2(), {{0, 38}, {38, 60}}, 50);
  CHECK(share == Approx(0.5).margin(0.03));
  // A job alone whose steps are one microbatch has one stage wait for the other.
  CHECK(Foresee(view).at("a").end_s == Approx(10 * 0.3 * share * 2));
  // Two jobs overlap, and so do the microbatches of one step.
  view.queue.push_back(job);
  view.queue.back().job = "b";
  CHECK(Foresee(view).at("a").end_s == Approx(10 * 0.5 * share * 1.2).epsilon(1e-9));
  view.queue.pop_back();
  view.queue[0].step_tokens = 4096;
  CHECK(Foresee(view).at("a").end_s == Approx(10 * (0.4 + 4.096) * share * 5 / 4));
}

// A round of each takes 0.3 s alone, of several at most as long; forming takes 5 s.
ClusterView Ahead(std::vector<WorkerView> workers, std::vector<GroupView> groups,
                  std::vector<QueuedJob> queue) {
  ClusterView view = Of(std::move(workers), std::move(groups), std::move(queue));
  for (WorkerView& worker : view.workers) worker.device_name = "slow";
  for (GroupView& group : view.groups) group.device_name = "slow";
  for (const char* base : {"large", "wide", "small"}) {
    view.times[{base, "slow"}] = {100, 1, 0};
    view.load_s[{base, "slow"}] = 5;
  }
  return view;
}

QueuedJob WithSteps(QueuedJob job, int64_t steps) {
  job.step_tokens = 200;
  job.remaining_steps = steps;
  return job;
}

GroupView Trains(const std::string& name, const std::vector<std::string>& workers,
                 const QueuedJob& job) {
  GroupView group = On(name, workers, {job}, job);
  group.running[0].remaining_steps = job.remaining_steps;
  return group;
}

TEST_CASE("It is foreseen when several workers come together and part") {
  const WorkerView u = Busy(Node("u")), v = Busy(Node("v"));
  QueuedJob wide = WithSteps(Wide("wide"), 100);
  wide.base_model = "wide";
  const QueuedJob large = WithSteps(Wide("large"), 100);
  const QueuedJob small = WithSteps(Narrow("small", 101), 100),
                  next = WithSteps(Narrow("next", 102), 1);
  SECTION("one after the other on the same workers") {
    const auto seen = Foresee(Ahead({u, v}, {Trains("g", {"u", "v"}, wide)}, {large, small}));
    CHECK(seen.at("large").start_s == Approx(seen.at("wide").end_s + 5));
    CHECK(seen.at("small").start_s == Approx(seen.at("large").end_s + 5));
    CHECK(seen.at("small").end_s == Approx(seen.at("small").start_s + 30));
  }
  SECTION("the workers of two groups, the first of which waits for the other") {
    const ClusterView view = Ahead({u, v},
                                   {Trains("g", {"u"}, WithSteps(Narrow("short"), 10)),
                                    Trains("h", {"v"}, WithSteps(Narrow("long"), 100))},
                                   {WithSteps(Narrow("ahead", 99), 20), large, next});
    const auto seen = Foresee(view);
    CHECK(seen.at("ahead").start_s == 0);
    CHECK(seen.at("large").start_s == Approx(seen.at("long").end_s + 5));
    CHECK(seen.at("next").start_s == Approx(seen.at("large").end_s + 5));
  }
  SECTION("those that will be free the soonest, and the third goes on") {
    const auto seen = Foresee(Ahead({u, v, Busy(Node("w"))},
                                    {Trains("g", {"u"}, WithSteps(Narrow("long"), 1000)),
                                     Trains("h", {"v"}, WithSteps(Narrow("short"), 10)),
                                     Trains("i", {"w"}, WithSteps(Narrow("soon"), 20))},
                                    {large, next}));
    CHECK(seen.at("large").start_s == Approx(seen.at("soon").end_s + 5));
    CHECK(seen.at("next").start_s == 0);  // beside the long one
  }
  SECTION("workers without a job are put together at once, and each by itself") {
    GroupView empty = On("g", {"u"}, {}, small);
    const auto seen = Foresee(Ahead({u, Node("v")}, {empty}, {large}));
    CHECK(seen.at("large").start_s == Approx(5));
    QueuedJob second = small;
    second.job = "second";
    second.alone = true;
    GroupView both = On("g", {"u", "v"}, {}, wide);
    const auto parted = Foresee(Ahead({u, v}, {both}, {small, second}));
    CHECK(parted.at("small").start_s == Approx(5));
    CHECK(parted.at("second").start_s == Approx(5));
    // Their own base model needs nothing loaded.
    CHECK(Foresee(Ahead({u, v}, {both}, {wide})).at("wide").start_s == 0);
  }
  SECTION("a job that is registered for more workers than there are is not foreseen") {
    QueuedJob three = large;
    three.stages = 3;
    CHECK_FALSE(Foresee(Ahead({u, Node("v")}, {}, {three})).contains("large"));
  }
}

TEST_CASE("1,000 jobs of one worker and of two on 64") {
  std::vector<WorkerView> workers;
  for (int i = 0; i < 64; ++i) workers.push_back(Node("w" + std::to_string(i)));
  std::vector<QueuedJob> queue;
  for (int i = 0; i < 1000; ++i) {
    QueuedJob job = i % 3 == 0 ? Narrow(std::to_string(i), i) : Wide(std::to_string(i), i);
    if (i % 3 == 1) job.base_model = "wide";
    queue.push_back(WithSteps(job, 1 + i % 7));
    queue.back().alone = i % 5 == 0;
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto seen = Foresee(Ahead(workers, {}, queue));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  std::cout << "foresaw 1,000 jobs of one worker and of two in " << took.count() << " ms\n";
  CHECK(seen.size() == 1000);
  CHECK(took.count() < 1000);  // a hang or a square would show
}

// A cluster that does what the policy says, a minute at a time.
class World {
 public:
  explicit World(std::mt19937& random) : random_(random) {
    const int workers = 2 + static_cast<int>(random_() % 4);
    for (int w = 0; w < workers; ++w) {
      workers_.push_back(Node("w" + std::to_string(w), random_() % 2 == 0 ? "g" : "h",
                              w > 2 && random_() % 3 == 0 ? "m" : "n"));
    }
    const int jobs = 5 + static_cast<int>(random_() % 15);
    for (int j = 0; j < jobs; ++j) {
      const std::string name = "j" + std::to_string(j);
      const auto priority = static_cast<int32_t>(random_() % 2);
      Job& job = jobs_[name];
      job.content = random_() % 3 == 0 ? Wide(name, j, priority) : Narrow(name, j, priority);
      if (job.content.base_model == "small" && random_() % 3 == 0) {
        job.content.base_model = "twice";
        job.content.stages = 2;
      }
      job.left_s = 60 * static_cast<int64_t>(1 + random_() % 60);
      job.comes_s = 60 * static_cast<int64_t>(random_() % 60);
      work_s_ += job.left_s;
    }
  }

  void Run() {
    size_t done = 0;
    const int64_t end_s = 60 * 60 + 3 * work_s_ + 3600;
    for (int64_t now_s = 0; done < jobs_.size(); now_s += 60) {
      INFO("second " << now_s);
      REQUIRE(now_s < end_s);  // nobody starves
      const ClusterView view = ViewAt(now_s);
      const std::vector<Decision> decisions = Schedule(view);
      std::string text, again;
      for (const Decision& decision : decisions) text += ToText(decision) + "\n";
      for (const Decision& decision : Schedule(view)) again += ToText(decision) + "\n";
      REQUIRE(text == again);
      const auto foreseen = Foresee(view);
      for (const QueuedJob& job : view.queue) {
        INFO("job " << job.job);
        REQUIRE(foreseen.at(job.job).end_s > foreseen.at(job.job).start_s);
      }
      for (const Decision& decision : decisions) Carry(decision);
      for (auto& [name, job] : jobs_) {
        if (job.group.empty()) continue;
        job.left_s -= 60;
        if (job.left_s > 0) continue;
        std::erase(groups_.at(job.group).jobs, name);
        job.group.clear();
        job.done = true;
        ++done;
      }
    }
  }
  int formed() const { return formed_; }

 private:
  struct Job {
    QueuedJob content;
    int64_t left_s = 0;
    int64_t comes_s = 0;
    std::string group;
    bool done = false;
  };
  struct RunningGroup {
    Decision formed;
    std::vector<std::string> jobs;
  };

  static std::vector<std::string> WorkersOf(const Decision& decision) {
    if (decision.stages.empty()) return {decision.worker};
    std::vector<std::string> names;
    for (const StageView& stage : decision.stages) names.push_back(stage.worker);
    return names;
  }

  ClusterView ViewAt(int64_t now_s) const {
    ClusterView view;
    view.policy.evict = false;
    view.workers = workers_;
    for (const auto& [name, group] : groups_) {
      std::vector<QueuedJob> jobs;
      for (const std::string& job : group.jobs) jobs.push_back(jobs_.at(job).content);
      GroupView& entry = view.groups.emplace_back(
          On(name, {group.formed.worker}, jobs, jobs_.at(group.formed.jobs[0]).content));
      entry.shape = group.formed.shape;
      entry.stages = group.formed.stages;
      for (const std::string& worker : WorkersOf(group.formed)) {
        std::ranges::find(view.workers, worker, &WorkerView::name)->idle = false;
      }
    }
    for (const auto& [name, job] : jobs_) {
      if (job.done || !job.group.empty() || job.comes_s > now_s) continue;
      view.queue.push_back(job.content);
    }
    return view;
  }

  void Carry(const Decision& decision) {
    INFO(ToText(decision));
    if (decision.kind == Decision::Kind::kDissolve) {
      REQUIRE(groups_.at(decision.group).jobs.empty());
      groups_.erase(decision.group);
    }
    if (decision.kind == Decision::Kind::kFormGroup) {
      Check(decision);
      formed_ += !decision.stages.empty();
      const std::string name = "g" + std::to_string(names_++);
      groups_[name].formed = decision;
      Join(name, decision.jobs);
    }
    if (decision.kind == Decision::Kind::kAdmit) Join(decision.group, decision.jobs);
  }

  void Check(const Decision& decision) const {
    const std::vector<std::string> names = WorkersOf(decision);
    const QueuedJob& first = jobs_.at(decision.jobs[0]).content;
    REQUIRE(names[0] == decision.worker);
    REQUIRE((decision.stages.empty() || decision.stages.size() >= 2));
    if (first.stages > 0) REQUIRE(names.size() == static_cast<size_t>(first.stages));
    if (first.base_model == "small") REQUIRE(names.size() == 1);
    if (first.base_model == "large") REQUIRE(names.size() == 2);
    std::set<std::string> numerics, taken;
    for (const std::string& name : names) {
      const auto worker = std::ranges::find(workers_, name, &WorkerView::name);
      REQUIRE(worker != workers_.end());
      numerics.insert(worker->numerics_id);
      REQUIRE(taken.insert(name).second);
      for (const auto& [key, group] : groups_) {
        for (const std::string& other : WorkersOf(group.formed)) REQUIRE(other != name);
      }
    }
    REQUIRE(numerics.size() == 1);
  }

  void Join(const std::string& name, const std::vector<std::string>& jobs) {
    RunningGroup& group = groups_.at(name);
    for (const std::string& job : jobs) {
      REQUIRE(jobs_.at(job).group.empty());
      REQUIRE(jobs_.at(job).content.base_model == group.formed.base_model);
      jobs_.at(job).group = name;
      group.jobs.push_back(job);
    }
    const QueuedJob& first = jobs_.at(group.formed.jobs[0]).content;
    std::vector<StageRange> ranges = {WholeModel(*first.model)};
    if (!group.formed.stages.empty()) ranges.clear();
    for (const StageView& stage : group.formed.stages) ranges.push_back(stage.range);
    for (const StageRange& range : ranges) {
      int64_t bytes = BytesOfGroup(*first.model, group.formed.shape, range).total();
      for (const std::string& job : group.jobs) {
        bytes += BytesOfSlot(*first.model, jobs_.at(job).content.adapter, kCpu, range).total();
      }
      REQUIRE(Fits(bytes, HalfBudget()));
    }
  }

  std::mt19937& random_;
  std::vector<WorkerView> workers_;
  std::map<std::string, Job> jobs_;
  std::map<std::string, RunningGroup> groups_;
  int64_t work_s_ = 0;
  int formed_ = 0;
  int names_ = 0;
};

TEST_CASE("Random clusters of jobs that need one worker and two: all end, memory holds") {
  int formed = 0;
  for (const uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 60; ++i) {
      INFO("seed " << seed << " cluster " << i);
      World world(random);
      world.Run();
      formed += world.formed();
    }
  }
  std::cout << formed << " groups of several workers\n";
  CHECK(formed > 100);
}

}  // namespace
}  // namespace lorad::planner
