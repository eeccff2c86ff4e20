// Random clusters that carry out what the policy decides, to their end.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <set>

#include "tests/planner/schedule/fixtures.h"

namespace lorad::planner {
namespace {

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
        if (job.moved_s != kNeverMoved) job.moved_s += 60;
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
    int64_t moved_s = kNeverMoved;
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
      job.moved_s = job.to.empty() ? kNeverMoved : 0;
      job.content.waited_s = 0;
      if (!job.to.empty()) Of(job.to).jobs.insert(name);
      job.to.clear();
    }
  }

  ClusterView ViewNow() const {
    ClusterView view;
    view.policy = policy_;
    for (const Worker& worker : workers_) {
      view.workers.push_back({worker.name, worker.budget, {.threads = 2}, worker.group.empty()});
      if (worker.group.empty()) continue;
      GroupView group{worker.group,
                      worker.base_model,
                      Shared(SmolLm2()),
                      {1024, 500, {.threads = 2}},
                      worker.budget,
                      true,
                      {},
                      {}};
      for (const std::string& name : worker.jobs) {
        const JobState& job = jobs_.at(name);
        group.jobs.push_back(name);
        group.adapters.push_back(*job.content.adapter);
        group.running.push_back({job.content.priority, job.content.arrival, job.running_s, 100, 200,
                                 job.content.label_group, job.leaving});
        group.running.back().moved_s = job.moved_s;
      }
      // Room that a re-placed job will take is as good as taken.
      for (const auto& [name, job] : jobs_) {
        if (job.to != worker.group || !job.leaving) continue;
        group.jobs.push_back(name);
        group.adapters.push_back(*job.content.adapter);
        group.running.push_back({job.content.priority, job.content.arrival, 0, 100, 200,
                                 job.content.label_group, false});
        group.running.back().coming = true;
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
      REQUIRE(victim.moved_s >= policy_.minimum_run_s);
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
      int64_t bytes = BytesOfGroup(SmolLm2(), {1024, 500, {.threads = 2}}).total();
      for (const std::string& name : worker.jobs) {
        bytes += BytesOfSlot(SmolLm2(), *jobs_.at(name).content.adapter).total();
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
