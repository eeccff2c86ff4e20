// Random clusters whose jobs need one worker or two: planner/schedule/schedule.h.
#include <algorithm>
#include <catch2/catch.hpp>
#include <iostream>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/planner/by_name.h"
#include "tests/planner/schedule/several.h"

namespace lorad::planner {
namespace {

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
      const auto foreseen = ForeseeByName(view);
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
        bytes += BytesOfSlot(*first.model, *jobs_.at(job).content.adapter, kCpu, range).total();
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
