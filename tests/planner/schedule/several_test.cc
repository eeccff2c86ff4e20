// Groups of several workers: planner/schedule/schedule.h.
#include "tests/planner/schedule/several.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "planner/foresight/foresee.h"

namespace lorad::planner {
namespace {

TEST_CASE("A job that fits no worker alone has a group on several idle ones") {
  REQUIRE(!FitsAlone(Wide("a"), kCpu, HalfBudget(), 0));
  REQUIRE(FitsAlone(Narrow("a"), kCpu, HalfBudget(), 0));
  CHECK(Text(Of({Node("u"), Node("v")}, {}, {Wide("a"), Wide("b", 101)})) ==
        "form u 0-37 | v 38-59 base=large 1024/100 recomputing blocks: a b\n");
  // A worker that could hold it alone is there, though it is not idle: it waits for that.
  WorkerView big = Busy(Node("big"));
  big.budget_bytes = kBig;
  CHECK(First(Of({Node("u"), Node("v"), big}, {}, {Wide("a")})).substr(0, 7) == "wait #1");
  // Not so where nobody knows when that will be free.
  big.doubtful = true;
  CHECK(First(Of({Node("u"), Node("v"), big}, {}, {Wide("a")})).substr(0, 11) == "form u 0-37");
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

TEST_CASE("Workers that hold a base model, or their stages of it, are taken before others") {
  const auto holding = [](const std::string& name, const std::string& base_model,
                          StageRange blocks = {}) {
    WorkerView worker = Node(name);
    worker.loaded_base_model = base_model;
    worker.loaded_blocks = blocks;
    return worker;
  };
  CHECK(First(Of({Node("u"), holding("v", "small")}, {}, {Narrow("a")})).substr(0, 6) == "form v");
  CHECK(First(Of({Node("u"), holding("v", "large")}, {}, {Narrow("a")})).substr(0, 6) == "form u");
  // One that had a stage of it holds too little for a group alone.
  CHECK(First(Of({Node("u"), holding("v", "small", {0, 8})}, {}, {Narrow("a")})).substr(0, 6) ==
        "form u");
  CHECK(First(Of({Node("t"), holding("u", "large", {38, 60}), holding("v", "large", {0, 38})}, {},
                 {Wide("a")}))
            .substr(0, 21) == "form v 0-37 | u 38-59");
}

TEST_CASE("A job fits no worker that it avoids, and others do as they would") {
  QueuedJob a = Narrow("a", 100), b = Narrow("b", 101);
  a.avoids = {"u"};
  CHECK(First(Of({Node("u"), Node("v")}, {}, {a})) == "form v base=small 1024/100: a");
  CHECK(First(Of({Node("u"), Busy(Node("v"))}, {On("g", {"v"}, {Narrow("x")}, Narrow("x"))},
                 {a})) == "admit g: a");
  // It waits rather than go there, or onto several; and keeps nobody from it who is behind.
  QueuedJob other = Narrow("o");
  other.base_model = "other";
  const auto waits = [&](const std::vector<GroupView>& groups, const WorkerView& u) {
    const std::string text = Text(Of({u, Busy(Node("v"))}, groups, {a, b}));
    INFO(text);
    CHECK(text.find("wait #1: a") != std::string::npos);
    return text;
  };
  const GroupView there = On("h", {"v"}, {other}, other);
  CHECK(waits({there}, Node("u")).find("replace h -> u base=other 1024/100: o for a") == 0);
  const GroupView own = On("g", {"u"}, {Narrow("x")}, Narrow("x"));
  CHECK(waits({own, there}, Busy(Node("u"))).find("admit g: b") != std::string::npos);
  CHECK(Text(Of({Node("u"), Node("w")}, {}, {[&] {
                  QueuedJob both = a;
                  both.avoids = {"u", "w"};
                  return both;
                }()}))
            .find("form") == std::string::npos);
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
  // Rather than one that has failed it has one whose group has no jobs, if nobody else needs that.
  const GroupView empty = On("g", {"v"}, {}, Narrow("y"));
  CHECK(First(Of({Node("a"), Node("u"), Busy(Node("v"))}, {empty}, {Wide("x")})).substr(0, 7) ==
        "form a ");
  CHECK(Text(Of({failed, Node("u"), Busy(Node("v"))}, {empty}, {Wide("x")})) ==
        "dissolve #1 g: x\n");
  WorkerView busy = Busy(Node("v"));
  busy.joins_failed = 3;
  CHECK(First(Of({failed, Node("u"), busy}, {empty}, {Wide("x")})).substr(0, 7) == "form a ");
  busy = Busy(Node("v"));
  busy.budget_bytes /= 8;
  CHECK(First(Of({failed, Node("u"), busy}, {empty}, {Wide("x")})).substr(0, 7) == "form a ");
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
  const auto what = [&](const std::string& second_host, int64_t budget, bool nccl = false) {
    std::vector<WorkerView> workers = {Busy(Node("u")), Busy(Node("v", second_host))};
    GroupView group = On("g", {"u", "v"}, {Wide("x")}, Wide("x"));
    group.shape = shape;
    for (size_t s = 0; s < workers.size(); ++s) {
      workers[s].device = gpu;
      workers[s].budget_bytes = budget;
      workers[s].nccl = nccl;
      group.stages[s] = {workers[s].name, ranges[s], budget};
    }
    return First(Of(workers, {group}, {Wide("a")}));
  };
  CHECK(what("h", two_jobs * 103 / 100) == "admit g: a");
  CHECK(what("g", two_jobs * 103 / 100) != "admit g: a");
  CHECK(what("g", (two_jobs + BytesOfNccl(1)) * 103 / 100) == "admit g: a");
  CHECK(what("h", two_jobs * 103 / 100, true) != "admit g: a");
  CHECK(what("h", (two_jobs + BytesOfNccl(1)) * 103 / 100, true) == "admit g: a");
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
  CHECK(needs.ends_with(" MiB: 1 is idle; waits until the jobs of group g have ended"));
  // Also where the group is of its own base model, and its worker would not hold the job.
  QueuedJob high = Narrow("a");
  const GroupView narrow = On("g", {"v"}, {Narrow("x")}, Narrow("x"));
  const std::vector<WorkerView> both = {Node("u"), Busy(Node("v"))};
  for (int64_t rank = 64; Text(Of(both, {narrow}, {high})).find("wait") != 0; rank += 64) {
    high.adapter = ShareAdapter(Rank(rank));
    REQUIRE(rank < 10'000);
  }
  CHECK(why(Of(both, {narrow}, {high}))
            .ends_with(": 1 is idle; waits until the jobs of group g have ended"));
  CHECK(why(Of({Node("u"), Busy(Node("v"))}, {}, {Wide("a")}))
            .ends_with(" MiB: fewer take jobs now"));
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
  // Though the other one is doubtful: without it the job has no room.
  std::vector<WorkerView> late = workers;
  late[1].doubtful = true;
  CHECK(Text(Of(late, {busy}, {Wide("a", 1), Narrow("b", 2)})).find("form u") == std::string::npos);
  // With a third one it waits for that instead, and its group drains, not the doubtful one.
  late.push_back(Busy(Node("w")));
  QueuedJob longer = Narrow("y");
  longer.remaining_steps = 100'000;
  const GroupView longest = On("k", {"w"}, {longer}, Narrow("y"));
  CHECK(First(Of(late, {busy, longest}, {Wide("a", 1), Narrow("b", 2)}))
            .find("until the jobs of group k have ended") != std::string::npos);
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
  // And where one of them takes no jobs: it is silent, say.
  GroupView rests = On("g", {"u", "v"}, {}, Wide("x"));
  rests.open = false;
  CHECK(First(Of({Busy(Node("u")), Busy(Node("v"))}, {rests}, {Narrow("a", 1)})) ==
        "dissolve #1 g: a");
  // Once, whoever else waits.
  CHECK(Text(Of({Busy(Node("u")), Busy(Node("v"))}, {rests}, {Narrow("a", 1), Narrow("b", 2)}))
            .find("dissolve", 1) == std::string::npos);
  rests.changes = true;
  CHECK(First(Of({Busy(Node("u")), Busy(Node("v"))}, {rests}, {Narrow("a", 1)})).find("wait") == 0);
}

TEST_CASE("A group that is formed again stays off what is kept for a job of several workers") {
  std::vector<QueuedJob> queue = {Narrow("x", 1), Narrow("y", 2), Wide("a", 3), Narrow("b", 4)};
  for (size_t i : {0, 1}) {
    queue[i].resumes = true;
    queue[i].trained_on = "c";
  }
  QueuedJob other = Narrow("z");
  other.base_model = "other";
  const GroupView busy = On("g", {"v"}, {other}, other);
  const std::vector<WorkerView> workers = {Node("b"), Node("c"), Busy(Node("v"))};
  const std::string text = Text(Of(workers, {busy}, queue));
  CHECK(text.find("form c base=small 1024/100: x y b\nwait #1: a (needs 2 workers") == 0);
  CHECK(text.find("form b") == std::string::npos);
  // Nobody needs several: they spread.
  queue.erase(queue.begin() + 2);
  CHECK(Text(Of(workers, {busy}, queue)).find("form b") != std::string::npos);
  // Where its own worker is gone, a job goes on on the other one.
  CHECK(First(Of({Node("b"), Busy(Node("v"))}, {busy}, {queue[0], Wide("a", 3)})) ==
        "form b base=small 1024/100: x");
}

TEST_CASE("Workers that fall free together are kept, not one that idles until then") {
  const GroupView busy = On("g", {"u", "v"}, {Wide("x")}, Wide("x"));
  QueuedJob other = Wide("a", 1);
  other.base_model = "another";
  const std::vector<WorkerView> workers = {Node("i"), Busy(Node("u")), Busy(Node("v"))};
  const std::string text = Text(Of(workers, {busy}, {other, Narrow("b", 2)}));
  CHECK(text.find("wait #1: a") == 0);
  CHECK(text.find("form i base=small 1024/100: b") != std::string::npos);
  // But one that idles already, rather than one that is free later.
  const GroupView soon = On("g", {"u"}, {Narrow("x")}, Narrow("x"));
  GroupView late = On("h", {"v"}, {Narrow("y")}, Narrow("y"));
  late.running[0].remaining_steps = 100'000;
  CHECK(Text(Of(workers, {soon, late}, {other, Narrow("b", 2)})).find("form i") ==
        std::string::npos);
}

TEST_CASE("Names that say what they are stand for themselves") {
  const GroupView busy = On("group-7", {"v"}, {Narrow("x")}, Narrow("x"));
  const std::string text =
      Text(Of({Node("u"), Busy(Node("v"))}, {busy}, {Wide("job-a", 1), Narrow("job-b", 2)}));
  CHECK(text.find("until the jobs of group-7 have ended") != std::string::npos);
  CHECK(text.find("(behind job-a, for which group-7 is draining)") != std::string::npos);
}

TEST_CASE("A job that gets none of the idle workers is told why") {
  const GroupView busy = On("g", {"v"}, {Narrow("x")}, Narrow("x"));
  QueuedJob other = Narrow("c", 2);
  other.base_model = "other";
  CHECK(
      Text(Of({Node("u"), Busy(Node("v"))}, {busy}, {Wide("a", 1), other}))
          .find(
              "wait #2: c (worker u is kept for job a, which needs several; the workers with room "
              "for it train other base models (small); waits until one is free)") !=
      std::string::npos);
  WorkerView small = Node("s");
  small.budget_bytes = 1 << 20;
  const std::string text = First(Of({small, Busy(Node("v"))}, {busy}, {other}));
  CHECK(text.find("wait #1: c (needs ") == 0);
  CHECK(text.find(", and worker s, which is idle, offers 1 MiB; the workers with room for it train "
                  "other base models (small); waits until one is free)") != std::string::npos);
  CHECK(First(Of({Busy(Node("v"))}, {busy}, {other})) ==
        "wait #1: c (all workers train other base models (small); waits until one is free)");
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
    QueuedJob job{"a", "m", Shared(Llama8B()), 0, 1, 1024, ShareAdapter(Rank(16))};
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

}  // namespace
}  // namespace lorad::planner
