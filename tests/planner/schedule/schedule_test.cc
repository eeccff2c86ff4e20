#include "planner/schedule/schedule.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

#include "planner/schedule/why.h"
#include "sizes/bytes_text.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

using sizes::NeededText;
using sizes::ThereText;

constexpr int64_t kBig = int64_t{8} << 30;

AdapterShape Rank(int64_t rank) { return {rank, {"q_proj", "v_proj"}}; }

QueuedJob Job(const std::string& name, const std::string& base, int64_t arrival,
              int64_t longest = 100, int64_t rank = 8, int32_t priority = 0) {
  return {name, base, Shared(SmolLm2()), priority, arrival, longest, ShareAdapter(Rank(rank))};
}

WorkerView Idle(const std::string& name, int64_t budget = kBig) {
  return {name, budget, {.threads = 2}, true};
}
WorkerView IdleGpu(const std::string& name, int64_t budget = kBig) {
  return {
      name, budget, {.kind = DeviceKind::kCuda, .multiprocessors = 132, .value_bytes = 2}, true};
}
WorkerView Busy(const std::string& name, int64_t budget = kBig) {
  return {name, budget, {.threads = 2}, false};
}

GroupView Group(const std::string& name, const std::string& base, size_t jobs, bool open = true,
                int64_t longest = 500, int64_t budget = kBig) {
  GroupView group{name, base, Shared(SmolLm2()), {1024, longest, {.threads = 2}}, budget, open,
                  {},   {}};
  for (size_t i = 0; i < jobs; ++i) {
    group.jobs.push_back(name + std::to_string(i));
    group.adapters.push_back(Rank(8));
  }
  return group;
}

// A suspect of ending its workers, and a group whose jobs are such.
QueuedJob Suspect(const std::string& name, int64_t arrival, int32_t company_max,
                  bool alone = false) {
  QueuedJob job = Job(name, "m", arrival);
  job.company_max = company_max;
  job.alone = alone;
  return job;
}
GroupView GroupOfSuspects(const std::string& name, const std::vector<int32_t>& company_max,
                          bool alone = false) {
  GroupView group = Group(name, "m", company_max.size());
  for (const int32_t most : company_max) {
    RunningJob& running = group.running.emplace_back();
    running.company_max = most;
    running.alone = alone;
  }
  return group;
}

std::string Text(const ClusterView& view) {
  std::string text;
  for (const Decision& decision : Schedule(view)) text += ToText(decision) + "\n";
  return text;
}

// Bytes that a group with these jobs needs, as the budget must be to just hold them.
int64_t BudgetFor(int64_t longest, const std::vector<int64_t>& ranks) {
  int64_t bytes =
      BytesOfGroup(SmolLm2(), {CapacityFor(1024, longest), longest, {.threads = 2}}).total();
  for (int64_t rank : ranks) bytes += BytesOfSlot(SmolLm2(), Rank(rank)).total();
  return bytes + bytes * 2 / 100 + 1;
}

TEST_CASE("Suspects are kept apart, and hold up nobody") {
  const std::string kept_out =
      "workers were lost, and it is being found out whose jobs end them; until then it is kept "
      "out of ";
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const Case cases[] = {
      {"half of them form a group, others besides",
       {{Idle("w")},
        {},
        {Suspect("a", 1, 2), Suspect("b", 2, 2), Suspect("c", 3, 2), Job("x", "m", 4)}},
       "form w base=m 1024/100: a b x\nwait #1: c (" + kept_out + "the group being formed)\n"},
      {"each has a worker of its own while there are some",
       {{Idle("w1"), Idle("w2")}, {}, {Suspect("a", 1, 2), Suspect("b", 2, 2), Suspect("c", 3, 2)}},
       "form w1 base=m 1024/100: a c\nform w2 base=m 1024/100: b\n"},
      {"a worker that is idle is better than company",
       {{Busy("w1"), Idle("w2")}, {Group("g", "m", 2)}, {Suspect("a", 1, 4)}},
       "form w2 base=m 1024/100: a\n"},
      {"those who are cleared are company",
       {{Busy("w")}, {Group("g", "m", 4)}, {Suspect("a", 1, 2), Suspect("b", 2, 2)}},
       "admit g: a\nadmit g: b\n"},
      {"the least of a group's counts",
       {{Busy("w")}, {GroupOfSuspects("g", {4, 2, 0})}, {Suspect("a", 1, 4), Job("x", "m", 2)}},
       "wait #1: a (" + kept_out + "group g)\nadmit g: x\n"},
      {"who is to be alone has its group to itself",
       {{Idle("w")}, {}, {Suspect("a", 1, 1, true), Job("x", "m", 2)}},
       "form w base=m 1024/100: a\nwait #1: x (" + kept_out + "the group being formed)\n"},
      {"also once it runs",
       {{Busy("w")}, {GroupOfSuspects("g", {1}, true)}, {Job("x", "m", 2)}},
       "wait #1: x (" + kept_out + "group g)\n"},
      {"the only suspect may have others with it",
       {{Busy("w")}, {Group("g", "m", 2)}, {Suspect("a", 1, 1), Job("x", "m", 2)}},
       "admit g: a\nadmit g: x\n"},
      {"who is to be alone waits for a worker, and newcomers wait behind it",
       {{Busy("w")}, {Group("g", "m", 2)}, {Suspect("a", 1, 1, true), Job("x", "m", 2)}},
       "wait #1: a (" + kept_out +
           "group g)\n"
           "wait #2: x (behind job a, for which group g is draining)\n"},
      {"an empty group is as good as none",
       {{Busy("w")}, {Group("g", "m", 0)}, {Suspect("a", 1, 1, true)}},
       "admit g: a\n"},
      {"who waits for what comes of it drains no other group",
       {{Busy("w1"), Busy("w2")},
        {GroupOfSuspects("g", {1}, true), Group("h", "n", 1)},
        {Job("x", "m", 1), Job("y", "n", 2)}},
       "wait #1: x (" + kept_out + "group g)\nadmit h: y\n"},
      {"nor leaves a worker idle that has a group without jobs",
       {{Busy("w1"), Busy("w2")},
        {GroupOfSuspects("g", {1}, true), Group("h", "n", 0)},
        {Job("x", "m", 1)}},
       "dissolve #1 h: x\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

TEST_CASE("Decisions") {
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const Case cases[] = {
      {"nothing to do", {{Idle("w")}, {}, {}}, ""},
      {"a GPU goes before a CPU, whatever their memory, and the larger GPU before the other",
       {{Idle("cpu", 8 * kBig), IdleGpu("gpu"), IdleGpu("large", 2 * kBig)},
        {},
        {Job("a", "m", 1), Job("b", "n", 2), Job("c", "o", 3)}},
       "form large base=m 8192/100: a\nform gpu base=n 8192/100: b\n"
       "form cpu base=o 1024/100: c\n"},
      {"what fits no GPU goes to the CPU",
       {{IdleGpu("gpu", 1 << 20), Idle("cpu")}, {}, {Job("a", "m", 1)}},
       "form cpu base=m 1024/100: a\n"},
      {"no worker", {{}, {}, {Job("a", "m", 1)}}, "wait #1: a (no worker is connected)\n"},
      {"jobs of one base model form one group, long enough for the longest",
       {{Idle("w")}, {}, {Job("a", "m", 1, 100), Job("b", "m", 2, 300), Job("c", "m", 3, 2000)}},
       "form w base=m 2000/2000: a b c\n"},
      {"arrival decides, not the order of the view",
       {{Idle("w")}, {}, {Job("b", "m", 2), Job("a", "m", 1)}},
       "form w base=m 1024/100: a b\n"},
      {"priority goes before arrival",
       {{Idle("w")}, {}, {Job("a", "m", 1), Job("b", "n", 2, 100, 8, 5)}},
       "form w base=n 1024/100: b\nwait #1: a (all workers train other base models (n); waits "
       "until one is free)\n"},
      {"another base model in between keeps those behind it out",
       {{Idle("w")}, {}, {Job("a", "m", 1), Job("b", "n", 2), Job("c", "m", 3)}},
       "form w base=m 1024/100: a\n"
       "wait #1: b (all workers train other base models (m); waits until one is free)\n"
       "wait #2: c (behind job b, for which the group being formed is draining)\n"},
      {"two workers, two base models",
       {{Idle("w1"), Idle("w2")}, {}, {Job("a", "m", 1), Job("b", "n", 2), Job("c", "m", 3)}},
       "form w1 base=m 1024/100: a c\nform w2 base=n 1024/100: b\n"},
      {"the largest idle worker is taken first",
       {{Idle("w1"), Idle("w2", 2 * kBig)}, {}, {Job("a", "m", 1)}},
       "form w2 base=m 1024/100: a\n"},
      {"a running group takes newcomers",
       {{Busy("w")}, {Group("g", "m", 2)}, {Job("a", "m", 1), Job("b", "m", 2)}},
       "admit g: a\nadmit g: b\n"},
      {"an idle worker is taken before company",
       {{Busy("w1"), Idle("w2")}, {Group("g", "m", 2)}, {Job("a", "m", 1)}},
       "form w2 base=m 1024/100: a\n"},
      {"but not before a group without jobs",
       {{Busy("w1"), Idle("w2")}, {Group("g", "m", 0)}, {Job("a", "m", 1)}},
       "admit g: a\n"},
      {"a group whose worker takes no jobs",
       {{Busy("w")}, {Group("g", "m", 1, false)}, {Job("a", "m", 1)}},
       "wait #1: a (group g takes no jobs now)\n"},
      {"longer rows form the group again",
       {{Busy("w")}, {Group("g", "m", 2)}, {Job("a", "m", 1, 501)}},
       "reform #1 g 1024/501: a\n"},
      {"and those behind wait for that",
       {{Busy("w")}, {Group("g", "m", 2)}, {Job("a", "m", 1, 1500), Job("b", "m", 2)}},
       "reform #1 g 1500/1500: a\nwait #2: b (group g is being formed or changed)\n"},
      {"an idle worker spares the group its interruption",
       {{Busy("w1"), Idle("w2")}, {Group("g", "m", 2)}, {Job("a", "m", 1, 501)}},
       "form w2 base=m 1024/501: a\n"},
      {"an empty group gives way",
       {{Busy("w")}, {Group("g", "m", 0)}, {Job("a", "n", 1)}},
       "dissolve #1 g: a\n"},
      {"a group at work does not",
       {{Busy("w")}, {Group("g", "m", 1)}, {Job("a", "n", 1)}},
       "wait #1: a (all workers train other base models (m); waits until one is free)\n"},
      {"what fits no worker says by how much",
       {{Idle("w", 1000)}, {}, {Job("a", "m", 1)}},
       "wait #1: a (needs " +
           NeededText(BlocksAgain(1024, 100) + BytesOfSlot(SmolLm2(), Rank(8)).total()) +
           "; the largest worker offers 0 KiB)\n"},
      {"it keeps nobody else out",
       {{Idle("w", BudgetFor(100, {8}))}, {}, {Job("a", "m", 1, 9000), Job("b", "n", 2)}},
       "wait #1: a (needs " +
           NeededText(BlocksAgain(9000, 9000) + BytesOfSlot(SmolLm2(), Rank(8)).total()) +
           "; the largest worker offers " + ThereText(BudgetFor(100, {8})) +
           ")\nform w base=n 1024/100: b\n"},
      {"a group computes blocks again for a job that does not fit otherwise, even alone",
       {{Idle("w", BudgetFor(100, {64}) - 1)}, {}, {Job("a", "m", 1, 100, 64)}},
       "form w base=m 1024/100 recomputing blocks: a\n"},
      {"not to take in another",
       {{Idle("w", BudgetFor(100, {64}))}, {}, {Job("a", "m", 1, 100, 64), Job("b", "m", 2)}},
       "form w base=m 1024/100: a\nwait #1: b (does not fit beside the one job of the group being "
       "formed in its worker's memory; waits until it ends or gives way)\n"},
      {"and is formed again to do so for longer rows",
       {{Busy("w")},
        {Group("g", "m", 1, true, 500, BudgetFor(2000, {8, 8}) - BudgetFor(2000, {8}) / 4)},
        {Job("a", "m", 1, 2000)}},
       "reform #1 g 2000/2000 recomputing blocks: a\n"},
      {"memory for two: the third waits, and the small one behind it does not slip past",
       {{Idle("w", BudgetFor(100, {64, 64}))},
        {},
        {Job("a", "m", 1, 100, 64), Job("b", "m", 2, 100, 64), Job("c", "m", 3, 100, 64),
         Job("d", "m", 4, 100, 1)}},
       "form w base=m 1024/100: a b\n"
       "wait #1: c (does not fit beside the 2 jobs of the group being formed in its worker's "
       "memory; waits until one of them ends or gives way)\n"
       "wait #2: d (behind job c, for which the group being formed is draining)\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

TEST_CASE("A group that changes is waited for, but not beside one without jobs") {
  for (const bool forming : {false, true}) {
    CAPTURE(forming);
    ClusterView view{{Busy("w1"), Busy("w2")},
                     {Group("g", "m", 1, false), Group("h", "m", 1)},
                     {Job("a", "m", 1, 501)}};
    view.groups[0].changes = true;
    view.groups[0].forming = forming;
    CHECK(Text(view) == "wait #1: a (group g is being formed or changed)\n");
    view.groups[1] = Group("h", "m", 0);
    CHECK(Text(view) == "reform #1 h 1024/501: a\n");
  }
}

TEST_CASE("Nobody waits behind one that stands behind it") {
  const ClusterView view{
      {Busy("w")}, {Group("g", "m", 2)}, {Job("a", "m", 1, 100), Job("b", "m", 2)}};
  Round round(view);
  round.waiting = {&round.queue[0], &round.queue[1]};
  CHECK(WhyWait(round, round.queue[1]) == "behind job a, for which group g is draining");
  Round later(view);
  later.waiting = {&later.queue[0], &later.queue[1]};
  later.settled.insert(later.queue[0].job);  // others leave another group for it
  CHECK(WhyWait(later, later.queue[0]).find("behind") == std::string::npos);
}

TEST_CASE("Random clusters: budgets hold, groups are of one base model, all jobs are answered") {
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    INFO("seed " << seed);
    for (int i = 0; i < 200; ++i) {
      ClusterView view;
      for (size_t w = 0, count = random() % 4; w < count; ++w) {
        const int64_t budget = BudgetFor(200 + static_cast<int64_t>(random() % 2000), {8, 64});
        if (random() % 2 == 0) {
          view.workers.push_back(Idle("w" + std::to_string(w), budget));
        } else {
          view.workers.push_back(Busy("w" + std::to_string(w), budget));
          view.groups.push_back(Group("g" + std::to_string(w), random() % 2 == 0 ? "m" : "n",
                                      random() % 2, random() % 4 != 0, 100, budget));
        }
      }
      std::map<std::string, QueuedJob> jobs;
      for (size_t j = 0, count = random() % 8; j < count; ++j) {
        const std::string name = "j" + std::to_string(j);
        jobs[name] =
            Job(name, random() % 2 == 0 ? "m" : "n", static_cast<int64_t>(j),
                50 + static_cast<int64_t>(random() % 3000),
                1 + static_cast<int64_t>(random() % 128), static_cast<int32_t>(random() % 3));
        view.queue.push_back(jobs[name]);
      }
      std::set<std::string> answered;
      for (const Decision& decision : Schedule(view)) {
        INFO(ToText(decision));
        for (const std::string& job : decision.jobs) REQUIRE(answered.insert(job).second);
        if (decision.kind == Decision::Kind::kWait) REQUIRE(!decision.why.empty());
        if (decision.kind != Decision::Kind::kFormGroup) continue;
        int64_t bytes = BytesOfGroup(SmolLm2(), decision.shape).total();
        for (const std::string& name : decision.jobs) {
          REQUIRE(jobs[name].base_model == decision.base_model);
          REQUIRE(jobs[name].longest_sequence <= decision.shape.longest_sequence);
          bytes += BytesOfSlot(SmolLm2(), *jobs[name].adapter).total();
        }
        for (const WorkerView& worker : view.workers) {
          if (worker.name == decision.worker) REQUIRE(Fits(bytes, worker.budget_bytes));
        }
      }
      REQUIRE(answered.size() == jobs.size());
    }
  }
}

// What is decided of a crowd of one shape is worked out once. A label of its own makes each job one
// that is looked at by itself.
TEST_CASE("Jobs of a crowd fare as each of them would by itself") {
  std::mt19937 random(1);
  int waited = 0;
  for (int trial = 0; trial < 500; ++trial) {
    ClusterView view;
    view.microbatch_tokens = 1024;
    const int64_t budget = BudgetFor(500, {8, 8, 64});
    for (size_t g = 0; g < 1 + random() % 2; ++g) {
      const std::string name = "g" + std::to_string(g);
      view.workers.push_back(Busy("w" + name, budget));
      view.groups.push_back(
          Group(name, g == 0 ? "m" : "n", random() % 4, random() % 4 > 0, 500, budget));
      for (size_t j = 0; j < view.groups.back().jobs.size() && trial % 2 == 0; ++j) {
        RunningJob& running = view.groups.back().running.emplace_back();
        running.priority = static_cast<int32_t>(random() % 2);
        running.arrival = static_cast<int64_t>(j);
        running.running_s = static_cast<int64_t>(random() % 2000);
        running.longest_sequence = 100;
        running.leaving = random() % 5 == 0;
      }
    }
    for (size_t w = 0; w < random() % 3; ++w) {
      view.workers.push_back(Idle("i" + std::to_string(w), budget));
    }
    const int crowd = 1 + static_cast<int>(random() % 6);
    for (int j = 0; j < 24;) {
      QueuedJob job = Job("", random() % 3 == 0 ? "n" : "m", 0, random() % 2 == 0 ? 100 : 700,
                          random() % 2 == 0 ? 8 : 64, static_cast<int32_t>(random() % 2));
      if (random() % 4 == 0) job.company_max = 1 + static_cast<int32_t>(random() % 2);
      job.waited_s = static_cast<int64_t>(random() % 3) * 3600;
      for (int k = 0; k < crowd; ++k, ++j) {
        job.job = "j" + std::to_string(j);
        job.arrival = j;
        view.queue.push_back(job);
      }
    }
    ClusterView each = view;
    for (QueuedJob& job : each.queue) job.label_group = job.job;
    INFO("trial " << trial);
    CHECK(Text(view) == Text(each));
    for (const Decision& decision : Schedule(view)) {
      waited += decision.kind == Decision::Kind::kWait;
    }
  }
  CHECK(waited > 1000);
}

TEST_CASE("What is needed never shows as less than what is there") {
  constexpr int64_t kMiB = int64_t{1} << 20;
  CHECK(NeededText(1) == "1 KiB");
  CHECK(ThereText(1023) == "0 KiB");
  CHECK(NeededText(kMiB - 1) == "1024 KiB");
  CHECK(NeededText(kMiB) == "1 MiB");
  CHECK(ThereText(2 * kMiB - 1) == "1 MiB");
  CHECK(NeededText(kMiB + 1) == "2 MiB");
}

}  // namespace
}  // namespace lorad::planner
