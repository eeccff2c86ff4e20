// Eviction, aging, fair share and the number of jobs that still helps; schedule_test.cc has the
// rest of the policy.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "planner/schedule.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {
namespace {

AdapterShape Rank(int64_t rank) { return {rank, {"q_proj", "v_proj"}}; }

// Bytes that a group with these jobs needs, as the budget must be to just hold them.
int64_t BudgetFor(int64_t longest, const std::vector<int64_t>& ranks) {
  int64_t bytes = BytesOfGroup(SmolLm2(), {CapacityFor(1024, longest), longest, 2, 1}).total();
  for (int64_t rank : ranks) bytes += BytesOfSlot(SmolLm2(), Rank(rank)).total();
  return bytes + bytes * 2 / 100 + 1;
}

struct Trains {
  std::string job;
  int32_t priority = 0;
  int64_t running_s = 10000;
  int64_t rank = 64;
  std::string label_group = {};
  int64_t longest = 100;
  bool leaving = false;
};

GroupView Group(const std::string& name, const std::string& base, int64_t budget,
                const std::vector<Trains>& jobs, int64_t longest = 500) {
  GroupView group{name, base, SmolLm2(), {1024, longest, 2, 1}, budget, true, {}, {}};
  for (const Trains& job : jobs) {
    group.jobs.push_back(job.job);
    group.adapters.push_back(Rank(job.rank));
    group.running.push_back({job.priority, static_cast<int64_t>(group.jobs.size()), job.running_s,
                             job.longest, 200, job.label_group, job.leaving});
  }
  return group;
}

QueuedJob Job(const std::string& name, int32_t priority, int64_t waited_s = 0,
              const std::string& label_group = "", int64_t rank = 64, int64_t arrival = 100) {
  QueuedJob job{name, "m", SmolLm2(), priority, arrival, 100, Rank(rank)};
  job.waited_s = waited_s;
  job.step_tokens = 200;
  job.label_group = label_group;
  return job;
}

QueuedJob Other(QueuedJob job) {
  job.base_model = "n";
  return job;
}

QueuedJob Long(QueuedJob job, int64_t longest) {
  job.longest_sequence = longest;
  return job;
}

std::string Text(const ClusterView& view) {
  std::string text;
  for (const Decision& decision : Schedule(view)) text += ToText(decision) + "\n";
  return text;
}

ClusterView View(std::vector<GroupView> groups, std::vector<QueuedJob> queue) {
  ClusterView view;
  for (const GroupView& group : groups) {
    view.workers.push_back({group.name + "-worker", group.budget_bytes, 2, false});
  }
  view.groups = std::move(groups);
  view.queue = std::move(queue);
  view.policy.evict = true;
  return view;
}

TEST_CASE("Evictions") {
  const int64_t two = BudgetFor(500, {64, 64});
  const int64_t three = BudgetFor(500, {64, 64, 64});
  constexpr int64_t kHour = 3600;
  struct Case {
    std::string what;
    ClusterView view;
    std::string expected;
  };
  const std::string makes_room = "wait #1: x (group g makes room for it)\n";
  const Case cases[] = {
      {"room is taken without driving anyone out",
       View({Group("g", "m", three, {{"a"}, {"b"}})}, {Job("x", 1)}), "admit g: x\n"},
      {"the lowest priority goes first",
       View({Group("g", "m", two, {{"a", 1}, {"b", 0}})}, {Job("x", 2)}),
       "evict g: b for x\n" + makes_room},
      {"among equals the one that came last",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 1)}),
       "evict g: b for x\n" + makes_room},
      {"as many as it takes, and no more than that",
       View({Group("g", "m", two, {{"a", 0, 9, 64}, {"b", 0, 9, 1}, {"c", 0, 9, 63}})},
            {Job("x", 1, 0, "", 64)}),
       "evict g: c for x\nevict g: b for x\n" + makes_room},
      {"a large one makes the small one's leaving unnecessary",
       View({Group("g", "m", BudgetFor(500, {64, 4}), {{"a", 1, 9, 64}, {"b", 0, 9, 4}})},
            {Job("x", 2)}),
       "evict g: a for x\n" + makes_room},
      {"minimum run time does not protect from a higher priority",
       View({Group("g", "m", two, {{"a", 0, 1}, {"b", 0, 1}})}, {Job("x", 1)}),
       "evict g: b for x\n" + makes_room},
      {"nobody is driven out for an equal that has just come",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 0)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends)\n"},
      {"nor before the minimum run time for one that has waited",
       View({Group("g", "m", two, {{"a", 0, 899}, {"b", 0, 899}})}, {Job("x", 0, 9 * kHour)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends)\n"},
      {"but after it, for one that has a point",
       View({Group("g", "m", two, {{"a", 0, 900}, {"b", 0, 899}})}, {Job("x", 0, kHour)}),
       "evict g: a for x\n" + makes_room},
      {"no waiting lifts a job over a higher priority",
       View({Group("g", "m", two, {{"a", 1}, {"b", 1}})}, {Job("x", 0, 1000 * kHour)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends)\n"},
      {"not even in the queue",
       View({Group("g", "m", three, {{"a", 1}, {"b", 1}})},
            {Job("x", 0, 1000 * kHour), Job("y", 1, 0, "", 64, 200)}),
       "admit g: y\nwait #1: x (does not fit beside the 3 jobs of group g in its worker's memory; "
       "waits until one of them ends)\n"},
      {"who is leaving already is enough",
       View({Group("g", "m", two, {{"a"}, {"b", 0, 9, 64, "", 100, true}})}, {Job("x", 1)}),
       makes_room},
      {"another base model takes the whole group",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Other(Job("x", 1))}),
       "evict g: b for x\nevict g: a for x\n" + makes_room},
      {"or none of it", View({Group("g", "m", two, {{"a", 1}, {"b"}})}, {Other(Job("x", 1))}),
       "wait #1: x (all workers train other base models (m); waits until one is free)\n"},
      {"the group with the least important job",
       View({Group("g", "m", two, {{"a", 1}, {"b", 1}}), Group("h", "m", two, {{"c", 1}, {"d"}})},
            {Job("x", 2)}),
       "evict h: d for x\nwait #1: x (group h makes room for it)\n"},
      {"longer rows need memory too, and then the group is formed anew",
       View({Group("g", "m", BudgetFor(3000, {64}), {{"a"}, {"b"}, {"c"}})},
            {Long(Job("x", 1), 3000)}),
       "evict g: c for x\nevict g: b for x\nevict g: a for x\n" + makes_room},
      {"re-placed rather than evicted, whatever its priority",
       View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a", 5}, {"b", 0}}, 1000),
             Group("h", "m", two, {{"c", 0}})},
            {Long(Job("x", 1), 900)}),
       "replace g -> h: b for x\n" + makes_room},
      {"but not before its minimum run time",
       View({Group("g", "m", BudgetFor(1000, {64, 64}), {{"a", 5, 10}, {"b", 5, 10}}, 1000),
             Group("h", "m", two, {{"c", 5}})},
            {Long(Job("x", 1), 900)}),
       "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
       "one of them ends)\n"},
      {"one for the first; those behind it do not drive out others there",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 2), Job("y", 1)}),
       "evict g: b for x\n" + makes_room + "wait #2: y (group g is being formed or changed)\n"},
      {"what fits no worker drives nobody out, nor keeps others from it",
       View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 9, 0, "", 500), Job("y", 1)}),
       "wait #1: x (needs " +
           std::to_string(BytesOfGroup(SmolLm2(), {1024, 100, 2, 1}).total() +
                          BytesOfSlot(SmolLm2(), Rank(500)).total()) +
           " bytes; the largest worker offers " + std::to_string(two) +
           ")\nevict g: b for y\nwait #2: y (group g makes room for it)\n"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    CHECK(Text(c.view) == c.expected);
  }
  // By default nobody is evicted.
  ClusterView view = View({Group("g", "m", two, {{"a"}, {"b"}})}, {Job("x", 1)});
  view.policy = {};
  CHECK(Text(view) ==
        "wait #1: x (does not fit beside the 2 jobs of group g in its worker's memory; waits until "
        "one of them ends)\n");
}

std::string OrderOf(const ClusterView& view) {
  std::string order;
  for (size_t i : QueueOrder(view)) order += (order.empty() ? "" : " ") + view.queue[i].job;
  return order;
}

TEST_CASE("The order of the queue") {
  constexpr int64_t kHour = 3600;
  struct Case {
    std::string what;
    std::vector<QueuedJob> queue;
    std::vector<Trains> running;
    bool fair;
    std::string expected;
  };
  const auto job = [](const std::string& name, int64_t arrival, int32_t priority = 0,
                      int64_t waited_s = 0, const std::string& label_group = "") {
    return Job(name, priority, waited_s, label_group, 8, arrival);
  };
  const Case cases[] = {
      {"arrival", {job("b", 2), job("a", 1), job("c", 3)}, {}, false, "a b c"},
      {"priority first", {job("a", 1), job("b", 2, 1)}, {}, false, "b a"},
      {"an evicted job is behind those who waited longer",
       {job("a", 1, 0, 0), job("b", 2, 0, kHour)},
       {},
       false,
       "b a"},
      {"points end at the most, then arrival decides",
       {job("b", 2, 0, 90 * kHour), job("a", 1, 0, 4 * kHour)},
       {},
       false,
       "a b"},
      {"points never cross priorities",
       {job("a", 1, 0, 90 * kHour), job("b", 2, 1)},
       {},
       false,
       "b a"},
      {"fair share alternates",
       {job("a1", 1, 0, 0, "a"), job("a2", 2, 0, 0, "a"), job("b1", 3, 0, 0, "b"),
        job("b2", 4, 0, 0, "b")},
       {},
       true,
       "a1 b1 a2 b2"},
      {"running jobs count",
       {job("a1", 1, 0, 0, "a"), job("b1", 3, 0, 0, "b"), job("b2", 4, 0, 0, "b")},
       {{"a0", 0, 9, 8, "a"}, {"a9", 0, 9, 8, "a"}},
       true,
       "b1 b2 a1"},
      {"waiting makes up for it",
       {job("a1", 1, 0, 2 * kHour + 1, "a"), job("b1", 3, 0, 0, "b")},
       {{"a0", 0, 9, 8, "a"}, {"a9", 0, 9, 8, "a"}},
       true,
       "a1 b1"},
      {"within a priority alone",
       {job("a1", 1, 1, 0, "a"), job("a2", 2, 1, 0, "a"), job("b1", 3, 0, 0, "b")},
       {},
       true,
       "a1 a2 b1"},
  };
  for (const Case& c : cases) {
    INFO(c.what);
    ClusterView view = View({Group("g", "m", 1, c.running)}, c.queue);
    view.policy.fair_share = c.fair;
    CHECK(OrderOf(view) == c.expected);
  }
}

TEST_CASE("As many jobs as still help") {
  // 10 ms and 0.01 ms a token: 200 tokens take 12 ms, 400 take 14, 1024 take 20.24.
  const TimeCoefficients times{10, 0.01, 0};
  CHECK(GroupThroughput(times, 200, 1024) == Approx(200 / 12.0));
  CHECK(GroupThroughput(times, 400, 1024) == Approx(400 / 14.0));
  CHECK(GroupThroughput(times, 2048, 1024) == Approx(1024 / 20.24));
  CHECK(GroupThroughput(times, 0, 1024) == 0);
  std::vector<Trains> five, six;
  for (int i = 0; i < 6; ++i) {
    if (i < 5) five.push_back({"j" + std::to_string(i)});
    six.push_back({"j" + std::to_string(i)});
  }
  const int64_t big = int64_t{8} << 30;
  ClusterView view = View({Group("g", "m", big, five)}, {Job("x", 0)});
  view.times["m"] = times;
  view.policy.least_gain = 0.01;
  CHECK(Text(view) == "admit g: x\n");  // 1000 tokens become 1200: the rest of a microbatch
  view.groups = {Group("g", "m", big, six)};
  const std::string full =
      "wait #1: x (the 6 jobs of group g use all its worker can do; waits until one of them "
      "ends)\n";
  CHECK(Text(view) == full);
  view.queue = {Job("x", 1)};  // a higher priority may slow the others down
  CHECK(Text(view) == "admit g: x\n");
  view.queue = {Job("x", 0)};
  view.workers.push_back({"idle", big, 2, true});
  CHECK(Text(view) == "form idle base=m 1024/100: x\n");
  view.workers.pop_back();
  view.policy.least_gain = 0;
  CHECK(Text(view) == "admit g: x\n");
}

// A small cluster that does what the policy says, a minute at a time.
class World {
 public:
  World(std::mt19937& random, SchedulePolicy policy) : random_(random), policy_(policy) {
    const int workers = 1 + static_cast<int>(random_() % 3);
    for (int w = 0; w < workers; ++w) {
      workers_.push_back({"w" + std::to_string(w), BudgetFor(500, {64, 64, 32}), "", "", {}});
    }
    const int jobs = 5 + static_cast<int>(random_() % 20);
    for (int j = 0; j < jobs; ++j) {
      const std::string name = "j" + std::to_string(j);
      JobState& job = jobs_[name];
      job.content = Job(name, static_cast<int32_t>(random_() % 3), 0,
                        std::string(1, static_cast<char>('a' + random_() % 2)),
                        8 + static_cast<int64_t>(random_() % 100), j);
      if (random_() % 3 == 0) job.content.base_model = "n";
      job.left_s = 60 * static_cast<int64_t>(1 + random_() % 90);
      job.comes_s = 60 * static_cast<int64_t>(random_() % 120);
      work_s_ += job.left_s;
    }
  }

  void Run() {
    int64_t done = 0;
    // One job at a time would need work_s_; a place also changes hands, at a minute each time.
    const int64_t end_s = 120 * 60 + 4 * work_s_ + 3600;
    while (done < std::ssize(jobs_)) {
      INFO("second " << now_s_);
      REQUIRE(now_s_ < end_s);  // nobody starves
      Leave();
      Carry(Schedule(ViewNow()));
      CheckMemory();
      for (auto& [name, job] : jobs_) {
        if (job.group.empty()) {
          if (job.comes_s <= now_s_ && !job.done) job.content.waited_s += 60;
          continue;
        }
        job.running_s += 60;
        job.left_s -= 60;
        if (job.left_s > 0) continue;
        RemoveFrom(job.group, name);
        job.group.clear();
        job.done = true;
        ++done;
      }
      now_s_ += 60;
    }
  }
  int64_t evictions() const { return evictions_; }
  int64_t replaced() const { return replaced_; }

 private:
  struct JobState {
    QueuedJob content;
    int64_t left_s = 0;
    int64_t comes_s = 0;
    int64_t running_s = 0;
    std::string group;
    std::string to;  // re-placed into
    bool leaving = false;
    bool done = false;
  };
  struct Worker {
    std::string name;
    int64_t budget = 0;
    std::string group, base_model;
    std::set<std::string> jobs;
  };

  Worker& Of(const std::string& group) {
    return *std::find_if(workers_.begin(), workers_.end(),
                         [&](const Worker& worker) { return worker.group == group; });
  }
  void RemoveFrom(const std::string& group, const std::string& job) { Of(group).jobs.erase(job); }

  // What was decided a minute ago is carried out.
  void Leave() {
    for (auto& [name, job] : jobs_) {
      if (!job.leaving) continue;
      job.leaving = false;
      if (job.done) continue;
      RemoveFrom(job.group, name);
      job.group = job.to;
      job.running_s = 0;
      job.content.waited_s = 0;
      if (!job.to.empty()) Of(job.to).jobs.insert(name);
      job.to.clear();
    }
  }

  ClusterView ViewNow() const {
    ClusterView view;
    view.policy = policy_;
    for (const Worker& worker : workers_) {
      view.workers.push_back({worker.name, worker.budget, 2, worker.group.empty()});
      if (worker.group.empty()) continue;
      GroupView group{worker.group,
                      worker.base_model,
                      SmolLm2(),
                      {1024, 500, 2, 1},
                      worker.budget,
                      true,
                      {},
                      {}};
      for (const std::string& name : worker.jobs) {
        const JobState& job = jobs_.at(name);
        group.jobs.push_back(name);
        group.adapters.push_back(job.content.adapter);
        group.running.push_back({job.content.priority, job.content.arrival, job.running_s, 100, 200,
                                 job.content.label_group, job.leaving});
      }
      // Room that a re-placed job will take is as good as taken.
      for (const auto& [name, job] : jobs_) {
        if (job.to != worker.group || !job.leaving) continue;
        group.jobs.push_back(name);
        group.adapters.push_back(job.content.adapter);
        group.running.push_back({job.content.priority, job.content.arrival, 0, 100, 200,
                                 job.content.label_group, false});
      }
      view.groups.push_back(std::move(group));
    }
    for (const auto& [name, job] : jobs_) {
      if (job.group.empty() && !job.done && job.comes_s <= now_s_)
        view.queue.push_back(job.content);
    }
    return view;
  }

  void Carry(const std::vector<Decision>& decisions) {
    for (const Decision& decision : decisions) {
      INFO(ToText(decision));
      switch (decision.kind) {
        case Decision::Kind::kAdmit:
          Join(decision.jobs, Of(decision.group));
          break;
        case Decision::Kind::kFormGroup: {
          Worker& worker =
              *std::find_if(workers_.begin(), workers_.end(),
                            [&](const Worker& entry) { return entry.name == decision.worker; });
          REQUIRE(worker.group.empty());
          worker.group = "g" + std::to_string(next_group_++);
          worker.base_model = decision.base_model;
          Join(decision.jobs, worker);
          break;
        }
        case Decision::Kind::kDissolve:
          REQUIRE(Of(decision.group).jobs.empty());
          Of(decision.group).group.clear();
          break;
        case Decision::Kind::kEvict:
        case Decision::Kind::kReplace:
          Drive(decision);
          break;
        case Decision::Kind::kReform:
        case Decision::Kind::kWait:
          break;
      }
    }
  }

  void Join(const std::vector<std::string>& names, Worker& worker) {
    for (const std::string& name : names) {
      JobState& job = jobs_.at(name);
      REQUIRE(job.group.empty());
      REQUIRE(job.content.base_model == worker.base_model);
      worker.jobs.insert(name);
      job.group = worker.group;
      job.running_s = 0;
    }
  }

  void Drive(const Decision& decision) {
    REQUIRE(policy_.evict);
    JobState& victim = jobs_.at(decision.jobs.at(0));
    const JobState& winner = jobs_.at(decision.why_job);
    REQUIRE(victim.group == decision.group);
    REQUIRE(!victim.leaving);
    victim.leaving = true;
    victim.to = decision.to;
    const bool had_its_time = victim.running_s >= policy_.minimum_run_s;
    if (victim.content.priority < winner.content.priority) {
      ++evictions_;
    } else if (decision.kind == Decision::Kind::kReplace) {
      REQUIRE(had_its_time);
      ++replaced_;
    } else {
      REQUIRE(victim.content.priority == winner.content.priority);  // never across classes
      REQUIRE(had_its_time);                                        // never thrash
      REQUIRE(winner.content.waited_s >= 3600 / policy_.points_per_hour);
      ++evictions_;
    }
  }

  void CheckMemory() const {
    for (const Worker& worker : workers_) {
      if (worker.group.empty()) continue;
      int64_t bytes = BytesOfGroup(SmolLm2(), {1024, 500, 2, 1}).total();
      for (const std::string& name : worker.jobs) {
        bytes += BytesOfSlot(SmolLm2(), jobs_.at(name).content.adapter).total();
      }
      REQUIRE(Fits(bytes, worker.budget));
    }
  }

  std::mt19937& random_;
  const SchedulePolicy policy_;
  std::vector<Worker> workers_;
  std::map<std::string, JobState> jobs_;
  int64_t now_s_ = 0;
  int64_t work_s_ = 0;
  int64_t next_group_ = 0;
  int64_t evictions_ = 0;
  int64_t replaced_ = 0;
};

TEST_CASE("Random clusters run: nobody starves, nothing thrashes, memory holds") {
  int64_t evictions = 0, replaced = 0;
  for (uint32_t seed : Seeds()) {
    std::mt19937 random(seed);
    for (int i = 0; i < 150; ++i) {
      INFO("seed " << seed << " cluster " << i);
      SchedulePolicy policy;
      policy.evict = i % 4 != 0;
      policy.fair_share = i % 3 == 0;
      policy.minimum_run_s = 60 * static_cast<int64_t>(1 + random() % 30);
      World world(random, policy);
      world.Run();
      evictions += world.evictions();
      replaced += world.replaced();
    }
  }
  std::cout << evictions << " evictions, " << replaced << " re-placed\n";
  CHECK(evictions > 100);
}

}  // namespace
}  // namespace lorad::planner
