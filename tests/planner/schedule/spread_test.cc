// Where jobs go when several workers could have them: literal tables, and crowds in any order.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

TEST_CASE("A job goes where all end earliest") {
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const Case cases[] = {
      {"the faster device", Timed({IdleOn("a"), IdleOn("b", "fast")}, {Steps("x", 100)}),
       "form b base=m 1024/100: x\n"},
      // Alone 30 s. With the two the three jobs end 3 x 70 s from now, which is 110 s more.
      {"an idle worker rather than company",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}),
            {Running("g", "slow", {{200, 100}, {200, 100}})}),
       "form a base=m 1024/100: x\n"},
      {"unless loading takes longer than company",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}, 81),
            {Running("g", "slow", {{200, 100}, {200, 100}})}),
       "admit g: x\n"},
      {"just not",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}, 79),
            {Running("g", "slow", {{200, 100}, {200, 100}})}),
       "form a base=m 1024/100: x\n"},
      {"the worker that holds the base model loads nothing",
       With(Timed({IdleOn("a"), IdleOn("b", "slow", "m")}, {Steps("x", 100)}, 81),
            {Running("g", "slow", {{200, 100}, {200, 100}})}),
       "form b base=m 1024/100: x\n"},
      {"beside a job that ends soon rather than beside one that goes on",
       With(Timed({}, {Steps("x", 100)}),
            {Running("g", "slow", {{200, 1000}}), Running("h", "slow", {{200, 10}})}),
       "admit h: x\n"},
      {"beside small steps rather than beside large ones",
       With(Timed({}, {Steps("x", 100)}),
            {Running("g", "slow", {{900, 100}}), Running("h", "slow", {{200, 100}})}),
       "admit h: x\n"},
      {"a group that is being formed, if that is soon",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}, 81),
            {Forming(Running("g", "slow", {{200, 100}, {200, 100}}), 0.5)}),
       "admit g: x\n"},
      {"and not if it is not: all three end later",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}, 81),
            {Forming(Running("g", "slow", {{200, 100}, {200, 100}}), 2)}),
       "form a base=m 1024/100: x\n"},
      {"jobs behind see those before",
       Timed({IdleOn("a"), IdleOn("b", "fast")},
             {Steps("x", 100, 200, 1), Steps("y", 100, 200, 2)}),
       "form b base=m 1024/100: x\nform a base=m 1024/100: y\n"},
      {"three are better on the fast one than one of them on a slow one that is as slow as that",
       Timed({IdleOn("a"), IdleOn("b", "fast")},
             {Steps("x", 100, 20, 1), Steps("y", 100, 20, 2), Steps("z", 100, 20, 3)}),
       "form b base=m 1024/100: x y z\n"},
      {"of equal workers the one that holds the base model",
       Timed({IdleOn("a"), IdleOn("b", "slow", "m")}, {Steps("x", 100)}),
       "form b base=m 1024/100: x\n"},
      {"of equal workers the first by name", Timed({IdleOn("b"), IdleOn("a")}, {Steps("x", 100)}),
       "form a base=m 1024/100: x\n"},
      {"a device whose times are unknown is as fast as the others in the mean",
       Timed({IdleOn("a"), IdleOn("b", "fast"), IdleOn("c", "new")},
             {Steps("x", 9, 200, 1), Steps("y", 9, 200, 2)}),
       "form b base=m 1024/100: x\nform c base=m 1024/100: y\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

TEST_CASE("A group that is being formed takes those that it will hold; the others wait for it") {
  ClusterView view =
      With(Timed({}, {Steps("x", 100, 200, 1)}), {Forming(Running("g", "slow", {{200, 100}}))});
  QueuedJob longer = Steps("y", 100, 200, 2);
  longer.longest_sequence = 501;
  view.queue.push_back(longer);
  CHECK(Text(view) == "admit g: x\nwait #1: y (group g is being formed or changed)\n");
  view.groups[0].forming = false;
  CHECK(Text(view) ==
        "admit g: x\nwait #1: y (does not fit beside the 2 jobs of group g in its worker's memory; "
        "waits until one of them ends or gives way)\n");
  // Nobody leaves it, and without jobs it is not dissolved.
  view.groups[0] = Forming(Group("g", "m", BudgetFor(500, {64, 64}), {{"a"}, {"b"}}));
  view.queue = {Job("x", 1)};
  view.policy.evict = true;
  CHECK(Text(view) == "wait #1: x (group g is being formed or changed)\n");
  view.groups[0] = Forming(Group("g", "m", kBig, {}));
  view.queue = {Other(Job("x", 0))};
  CHECK(Text(view) ==
        "wait #1: x (all workers train other base models (m); waits until one is free)\n");
}

TEST_CASE("Who comes back joins no group for whose worker one waits that fits no other") {
  WorkerView own = IdleOn("own");
  own.budget_bytes = BudgetFor(500, {64, 64});
  QueuedJob back = Steps("x", 1000, 200, 1), waits = Steps("w", 100, 200, 2, "n");
  back.resumes = true;
  back.trained_on = "own";
  waits.longest_sequence = 9000;
  const GroupView group = Running("g", "fast", {{200, 100}});
  CHECK(Text(With(Timed({own}, {back}), {group})).find("admit g: x\n") == 0);
  CHECK(Text(With(Timed({own}, {back, waits}), {group})).find("form own base=m ") == 0);
  // Where it cannot go back it goes on there.
  CHECK(Text(With(Timed({}, {back, waits}), {group})).find("admit g: x\n") == 0);
}

TEST_CASE("An idle worker is left to a base model that has none") {
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const auto on = [](const std::string& base, const std::string& name, int64_t arrival) {
    return Steps(name, 100, 200, arrival, base);
  };
  WorkerView small = IdleOn("small");
  small.budget_bytes = BudgetFor(100, {8});
  QueuedJob large = on("n", "y", 2);
  large.longest_sequence = 9000;
  QueuedJob urgent = on("m", "b", 1);
  urgent.priority = 1;
  QueuedJob first = on("m", "a", 0);
  first.priority = 1;
  const Case cases[] = {
      {"jobs of both behind one another",
       Timed({IdleOn("a"), IdleOn("b")},
             {on("m", "m1", 1), on("m", "m2", 2), on("n", "n1", 3), on("n", "n2", 4)}),
       "form a base=m 1024/100: m1 m2\nform b base=n 1024/100: n1 n2\n"},
      {"what is left over is taken",
       Timed({IdleOn("a"), IdleOn("b"), IdleOn("c")},
             {on("m", "m1", 1), on("m", "m2", 2), on("m", "m3", 3), on("n", "n1", 4)}),
       "form a base=m 1024/100: m1 m3\nform b base=m 1024/100: m2\nform c base=n 1024/100: n1\n"},
      {"a base model that has a group needs none",
       With(Timed({IdleOn("a")}, {on("m", "m1", 1), on("n", "n1", 2)}),
            {Running("g", "slow", {{200, 100}})}),
       "admit g: m1\nform a base=n 1024/100: n1\n"},
      {"the only worker that is large enough, also by the first job",
       Timed({small, IdleOn("large")}, {on("m", "x", 1), large}),
       "form small base=m 1024/100: x\nform large base=n 9000/9000: y\n"},
      {"but not by a job of higher priority",
       Timed({IdleOn("a"), IdleOn("b")}, {first, urgent, on("n", "n1", 2)}),
       "form a base=m 1024/100: a\nform b base=m 1024/100: b\nwait #1: n1 (all workers train other "
       "base models (m); waits until one is free)\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

// A cluster that forms groups when it is told to, sooner or later.
class Site {
 public:
  Site(ClusterView view, std::mt19937& random) : view_(std::move(view)), random_(random) {}

  void Send(const std::vector<QueuedJob>& jobs) {
    view_.queue = jobs;
    for (GroupView& group : view_.groups) group.forming = group.forming && random_() % 3 > 0;
    for (const Decision& decision : Schedule(view_)) {
      INFO(ToText(decision));
      switch (decision.kind) {
        case Decision::Kind::kFormGroup: {
          WorkerView& worker =
              *std::ranges::find(view_.workers, decision.worker, &WorkerView::name);
          REQUIRE(worker.idle);
          worker.idle = false;
          GroupView group = Forming(Group("on-" + worker.name, decision.base_model, kBig, {}));
          group.shape = decision.shape;
          group.worker = worker.name;
          group.device_name = worker.device_name;
          view_.groups.push_back(group);
          for (const std::string& job : decision.jobs) Join(view_.groups.back(), jobs, job);
          break;
        }
        case Decision::Kind::kAdmit:
          Join(*std::ranges::find(view_.groups, decision.group, &GroupView::name), jobs,
               decision.jobs[0]);
          break;
        default:
          FAIL("not placed");
      }
    }
    view_.queue.clear();
  }

  // Group -> jobs.
  std::map<std::string, size_t> Jobs(const std::string& base = "m") const {
    std::map<std::string, size_t> jobs;
    for (const GroupView& group : view_.groups) {
      if (group.base_model == base) jobs[group.name] = group.jobs.size();
    }
    return jobs;
  }

 private:
  static void Join(GroupView& group, const std::vector<QueuedJob>& jobs, const std::string& name) {
    const QueuedJob& job = *std::ranges::find(jobs, name, &QueuedJob::job);
    group.jobs.push_back(name);
    group.adapters.push_back(*job.adapter);
    RunningJob& running = group.running.emplace_back();
    running.longest_sequence = job.longest_sequence;
    running.step_tokens = job.step_tokens;
    running.remaining_steps = job.remaining_steps;
  }

  ClusterView view_;
  std::mt19937& random_;
};

TEST_CASE("A group without jobs makes way rather than that a job joins others") {
  const auto empty = [](const std::string& device) {
    GroupView group = Running("e", device, {});
    group.base_model = "n";
    return group;
  };
  const GroupView busy = Running("g", "slow", {{200, 100}, {200, 100}});
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  // Alone 30 s; beside the two jobs all three end 110 s later in the sum.
  const Case cases[] = {
      {"where all end earlier so", With(Timed({}, {Steps("x", 100)}, 79), {busy, empty("slow")}),
       "dissolve #1 e: x\n"},
      {"and not where loading takes longer",
       With(Timed({}, {Steps("x", 100)}, 81), {busy, empty("slow")}), "admit g: x\n"},
      {"nor where a job waits for it",
       With(Timed({}, {Steps("x", 100), Steps("y", 100, 200, 1, "n")}), {busy, empty("slow")}),
       "admit g: x\nadmit e: y\n"},
      {"nor where it is not known how long it takes",
       With(Timed({}, {Steps("x", 100)}), {busy, empty("new")}), "admit g: x\n"},
      {"an idle worker rather than that, which one that runs has then (improve.h)",
       With(Timed({IdleOn("a")}, {Steps("x", 100)}), {busy, empty("slow")}),
       "form a base=m 1024/100: x\ndissolve e\n"},
      {"two jobs have one each",
       With(Timed({}, {Steps("x", 100, 200, 1), Steps("y", 100, 200, 2)}), {busy, empty("slow")}),
       "dissolve #1 e: x\nadmit g: y\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
}

TEST_CASE("16 equal jobs on four idle workers are four on each, however they come") {
  const std::map<std::string, size_t> four = {
      {"on-w0", 4}, {"on-w1", 4}, {"on-w2", 4}, {"on-w3", 4}};
  for (const uint32_t seed : Seeds()) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    for (int trial = 0; trial < 60; ++trial) {
      // Times may be unknown, or steps, or the tokens too.
      const int known = trial % 4;
      std::vector<WorkerView> workers;
      for (int w = 0; w < 4; ++w) workers.push_back(IdleOn("w" + std::to_string(w)));
      std::shuffle(workers.begin(), workers.end(), random);
      ClusterView view = Timed(workers, {}, trial % 2 == 0 ? 0 : 5);
      if (known < 3) view.times.clear();
      std::vector<QueuedJob> jobs;
      for (int j = 0; j < 16; ++j) {
        jobs.push_back(Steps("j" + std::to_string(j), known < 2 ? 0 : 100, known < 1 ? 0 : 200,
                             trial % 3 == 0 ? 0 : j));
      }
      std::shuffle(jobs.begin(), jobs.end(), random);
      Site site(std::move(view), random);
      // One by one, all at once, or as it comes.
      for (size_t sent = 0; sent < jobs.size();) {
        const size_t most = trial % 3 == 0 ? 1 : trial % 3 == 1 ? jobs.size() : 1 + random() % 6;
        const size_t count = std::min(most, jobs.size() - sent);
        const auto begin = jobs.begin() + static_cast<std::ptrdiff_t>(sent);
        site.Send({begin, begin + static_cast<std::ptrdiff_t>(count)});
        sent += count;
      }
      CHECK(site.Jobs() == four);
    }
  }
}

TEST_CASE("Two base models, mixed, on two workers have a group each") {
  for (const uint32_t seed : Seeds()) {
    INFO("seed " << seed);
    std::mt19937 random(seed);
    for (int trial = 0; trial < 40; ++trial) {
      std::vector<QueuedJob> jobs;
      for (int j = 0; j < 16; ++j) {
        jobs.push_back(Steps("j" + std::to_string(j), 100, 200, j, j % 2 == 0 ? "m" : "n"));
      }
      std::shuffle(jobs.begin(), jobs.end(), random);
      for (int j = 0; j < 16; ++j) jobs[static_cast<size_t>(j)].arrival = j;
      ClusterView view = Timed({IdleOn("w0"), IdleOn("w1")}, {});
      if (trial % 2 == 0) view.times.clear();
      Site site(std::move(view), random);
      site.Send(jobs);
      CHECK(site.Jobs("m").size() == 1);
      CHECK(site.Jobs("n").size() == 1);
      CHECK(site.Jobs("m").begin()->second == 8);
    }
  }
}

}  // namespace
}  // namespace lorad::planner
