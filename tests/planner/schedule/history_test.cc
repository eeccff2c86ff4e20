// Random histories of a small cluster that carries out what the policy decides: jobs come and end,
// workers come and go, times drift. However it goes, moves end, nobody starves and no worker idles.
#include <algorithm>
#include <catch2/catch.hpp>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/planner/schedule/timed.h"

namespace lorad::planner {
namespace {

constexpr int64_t kTick = 30;  // seconds
const char* const kBases[] = {"m", "n"};
const char* const kDevices[] = {"slow", "fast"};

class Site {
 public:
  Site(std::mt19937& random, SchedulePolicy policy) : random_(random), policy_(policy) {
    for (const char* base : kBases) {
      times_[{base, "slow"}] = {50.0 + Below(200), 1, 0};
      times_[{base, "fast"}] = {20.0 + Below(100), 0.4, 0};
      load_s_[{base, "slow"}] = load_s_[{base, "fast"}] = Below(60);
    }
    for (int w = 0; w < 2 + Below(3); ++w) AddWorker();
    for (int j = 0; j < 4 + Below(16); ++j) {
      const std::string name = "j" + std::to_string(j);
      JobState& job = jobs_[name];
      job.content = Job(name, Below(3), 0, "", 8 + Below(100), j);
      job.content.base_model = kBases[Below(3) == 0];
      job.content.longest_sequence = Below(5) == 0 ? 700 : 100;
      job.content.step_tokens = 50 + Below(1000);
      job.steps_left = 1 + Below(4000);
      job.comes_s = kTick * Below(120);
    }
  }

  void Run() {
    for (; std::ranges::any_of(jobs_, [](const auto& job) { return !job.second.done; });
         now_s_ += kTick) {
      INFO("second " << now_s_);
      REQUIRE(now_s_ < 400000);  // nobody starves
      Happen();
      Arrive();
      Settle();
      CheckIdleness();
      Train();
    }
  }
  int64_t moves() const { return moves_; }
  int64_t evictions() const { return evictions_; }
  int64_t reforms() const { return reforms_; }
  int64_t regrown() const { return regrown_; }

 private:
  struct JobState {
    QueuedJob content;
    double steps_left = 0;
    int64_t comes_s = 0;
    int64_t since_s = 0;  // in its group, or queued
    int64_t moved_at_s = -1;
    std::string group;
    std::string to;  // of a job that leaves: the group that it goes to
    bool leaving = false;
    bool done = false;
  };
  struct Group {
    std::string base_model, worker;
    GroupShape shape;
    int64_t formed_at_s = 0;  // it runs from then on
    std::set<std::string> jobs, coming;
  };
  struct Worker {
    WorkerView view;
    std::string group;
  };

  int Below(uint32_t bound) { return static_cast<int>(random_() % bound); }

  void AddWorker() {
    const std::string name = "w" + std::to_string(next_++);
    const int64_t budget = BudgetFor(700, {64, 64, 64, static_cast<int64_t>(8 + Below(100))});
    Worker& worker = workers_[name];
    worker.view = IdleOn(name, kDevices[Below(2)]);
    worker.view.budget_bytes = budget;
    if (worker.view.device_name == "slow") return;
    worker.view.device = {
        .kind = DeviceKind::kCuda, .threads = 1, .multiprocessors = 132, .value_bytes = 2};
    worker.view.budget_bytes = int64_t{1500 + 500 * Below(8)} << 20;
  }

  // Workers come and go for a while, and times drift; some are slower than their kind, as long as it
  // goes, and by how much is never the same.
  void Happen() {
    for (auto& [name, worker] : workers_) {
      if (Below(50) == 0) slowness_[name] = Below(2) == 0 ? 1 : 1.3 + Below(40) / 10.0;
      const double slowness = slowness_.try_emplace(name, 1).first->second;
      worker.view.slowness = slowness == 1 ? 1 : slowness * (0.8 + Below(40) / 100.0);
    }
    if (now_s_ > 120 * kTick || Below(20) > 0) return;
    for (auto& [key, times] : times_) times.constant_ms *= 0.7 + Below(60) / 100.0;
    if (workers_.size() < 5 && Below(2) == 0) return AddWorker();
    if (workers_.size() < 2) return;
    const auto gone = std::next(workers_.begin(), Below(static_cast<uint32_t>(workers_.size())));
    if (!gone->second.group.empty()) {
      const Group group = groups_.at(gone->second.group);
      for (const std::string& job : group.jobs) Queue(jobs_.at(job));
      for (const std::string& job : group.coming) jobs_.at(job).to.clear();
      groups_.erase(gone->second.group);
    }
    workers_.erase(gone);
    for (auto& [name, group] : groups_) {
      std::erase_if(group.coming, [&](const std::string& job) { return jobs_.at(job).to != name; });
    }
  }

  void Queue(JobState& job) {
    if (!job.to.empty()) groups_.at(job.to).coming.erase(job.content.job);
    job.group.clear();
    job.to.clear();
    job.leaving = false;
    job.since_s = now_s_;
  }

  // What was decided a tick ago is carried out.
  void Arrive() {
    for (auto& [name, job] : jobs_) {
      if (!job.leaving || job.group.empty()) continue;
      groups_.at(job.group).jobs.erase(name);
      const std::string to = job.to;
      Queue(job);
      if (to.empty()) continue;
      groups_.at(to).jobs.insert(name);
      job.group = to;
    }
  }

  ClusterView ViewNow() const {
    ClusterView view;
    view.policy = policy_;
    view.times = times_;
    view.load_s = load_s_;
    for (const auto& [name, worker] : workers_) {
      view.workers.push_back(worker.view);
      view.workers.back().idle = worker.group.empty();
      if (!worker.group.empty()) view.groups.push_back(ViewOf(worker));
    }
    for (const auto& [name, job] : jobs_) {
      if (!job.group.empty() || job.done || job.comes_s > now_s_) continue;
      view.queue.push_back(job.content);
      view.queue.back().waited_s = now_s_ - std::max(job.since_s, job.comes_s);
      view.queue.back().remaining_steps = static_cast<int64_t>(job.steps_left) + 1;
    }
    return view;
  }

  GroupView ViewOf(const Worker& worker) const {
    const Group& group = groups_.at(worker.group);
    GroupView view{worker.group,
                   group.base_model,
                   Shared(SmolLm2()),
                   group.shape,
                   worker.view.budget_bytes,
                   true,
                   {},
                   {}};
    view.worker = worker.view.name;
    view.device_name = worker.view.device_name;
    view.forming = group.formed_at_s > now_s_;
    view.ready_s = view.forming ? static_cast<double>(group.formed_at_s - now_s_) : 0;
    view.formed_s = std::max<int64_t>(0, now_s_ - group.formed_at_s);
    const auto add = [&](const std::string& name, bool coming) {
      const JobState& job = jobs_.at(name);
      view.jobs.push_back(name);
      view.adapters.push_back(*job.content.adapter);
      RunningJob& running = view.running.emplace_back();
      running.priority = job.content.priority;
      running.arrival = job.content.arrival;
      running.running_s = coming ? 0 : now_s_ - job.since_s;
      running.longest_sequence = job.content.longest_sequence;
      running.step_tokens = job.content.step_tokens;
      running.remaining_steps = static_cast<int64_t>(job.steps_left) + 1;
      running.leaving = job.leaving && !coming;
      running.coming = coming;
      if (job.moved_at_s >= 0) running.moved_s = now_s_ - job.moved_at_s;
    };
    for (const std::string& name : group.jobs) add(name, false);
    for (const std::string& name : group.coming) add(name, true);
    return view;
  }

  // Until nothing more is decided while no time passes.
  void Settle() {
    for (int rounds = 0; Carry(Schedule(ViewNow())); ++rounds) REQUIRE(rounds < 40);
    CheckMemory();
  }

  // Whether anything was done.
  bool Carry(const std::vector<Decision>& decisions) {
    bool done = false;
    for (const Decision& decision : decisions) {
      INFO(ToText(decision));
      done |= decision.kind != Decision::Kind::kWait;
      switch (decision.kind) {
        case Decision::Kind::kAdmit:
          Join(decision.group, decision.jobs);
          break;
        case Decision::Kind::kFormGroup:
          Join(Form(decision), decision.jobs);
          break;
        case Decision::Kind::kDissolve:
          REQUIRE(groups_.at(decision.group).jobs.empty());
          Dissolve(decision.group);
          break;
        case Decision::Kind::kReform:
          ++reforms_;
          Reform(decision);
          break;
        case Decision::Kind::kEvict:
        case Decision::Kind::kReplace:
          Drive(decision);
          break;
        case Decision::Kind::kWait:
          break;
      }
    }
    return done;
  }

  // The name of the group, which may have been formed for an earlier decision of this round.
  std::string Form(const Decision& decision) {
    Worker& worker = workers_.at(decision.worker);
    if (!worker.group.empty()) return worker.group;
    const std::string name = "g" + std::to_string(next_++);
    worker.group = name;
    Group& group = groups_[name];
    group.base_model = decision.base_model;
    group.worker = decision.worker;
    group.shape = decision.shape;
    const bool loaded = worker.view.loaded_base_model == decision.base_model;
    const double load_s = load_s_.at({decision.base_model, worker.view.device_name});
    group.formed_at_s = now_s_ + (loaded ? 0 : static_cast<int64_t>(load_s));
    worker.view.loaded_base_model = decision.base_model;
    return name;
  }

  void Join(const std::string& group, const std::vector<std::string>& names) {
    for (const std::string& name : names) {
      JobState& job = jobs_.at(name);
      REQUIRE(job.group.empty());
      REQUIRE(job.content.base_model == groups_.at(group).base_model);
      REQUIRE(job.content.longest_sequence <= groups_.at(group).shape.longest_sequence);
      groups_.at(group).jobs.insert(name);
      job.group = group;
      job.since_s = now_s_;
    }
  }

  void Dissolve(const std::string& name) {
    const Group group = groups_.at(name);
    REQUIRE(group.formed_at_s <= now_s_);
    REQUIRE(group.coming.empty());
    workers_.at(group.worker).group.clear();
    groups_.erase(name);
  }

  void Reform(const Decision& decision) {
    const std::string& name = decision.group;
    const Group group = groups_.at(name);
    if (decision.jobs.empty()) {
      REQUIRE(now_s_ - group.formed_at_s >= policy_.minimum_run_s);
      ++regrown_;
    }
    for (const std::string& job : group.jobs) {
      Queue(jobs_.at(job));
      jobs_.at(job).content.resumes = true;
    }
    for (const std::string& job : group.coming) jobs_.at(job).to.clear();
    groups_.at(name).coming.clear();
    groups_.at(name).jobs.clear();
    Dissolve(name);
    Carry(Schedule(ViewNow()));
    for (auto& [job, state] : jobs_) state.content.resumes = false;
  }

  void Drive(const Decision& decision) {
    JobState& job = jobs_.at(decision.jobs.at(0));
    REQUIRE(job.group == decision.group);
    REQUIRE(!job.leaving);
    REQUIRE(groups_.at(job.group).formed_at_s <= now_s_);
    job.leaving = true;
    if (decision.kind == Decision::Kind::kEvict) {
      ++evictions_;
      REQUIRE(job.content.priority <= jobs_.at(decision.why_job).content.priority);
      return;
    }
    REQUIRE(decision.to.empty() != decision.worker.empty());
    // Nobody moves twice within the minimum run time.
    if (job.moved_at_s >= 0) REQUIRE(now_s_ - job.moved_at_s >= policy_.minimum_run_s);
    ++moves_;
    job.moved_at_s = now_s_;
    job.to = decision.to.empty() ? Form(decision) : decision.to;
    groups_.at(job.to).coming.insert(job.content.job);
  }

  void CheckMemory() const {
    for (const auto& [name, group] : groups_) {
      int64_t bytes = BytesOfGroup(SmolLm2(), group.shape).total();
      for (const std::set<std::string>* jobs : {&group.jobs, &group.coming}) {
        for (const std::string& job : *jobs) {
          bytes +=
              BytesOfSlot(SmolLm2(), *jobs_.at(job).content.adapter, group.shape.device).total();
        }
      }
      REQUIRE(Fits(bytes, workers_.at(group.worker).view.budget_bytes));
    }
  }

  // No worker idles beside a job that would fit it.
  void CheckIdleness() const {
    const ClusterView view = ViewNow();
    for (const QueuedJob& job : view.queue) {
      for (const WorkerView& worker : view.workers) {
        if (!worker.idle) continue;
        ClusterView alone;
        alone.microbatch_tokens = view.microbatch_tokens;
        alone.workers = {worker};
        alone.queue = {job};
        REQUIRE(Schedule(alone)[0].kind == Decision::Kind::kWait);
      }
    }
  }

  void Train() {
    for (auto& [name, group] : groups_) {
      const int64_t ran_s = std::min(kTick, now_s_ + kTick - group.formed_at_s);
      if (ran_s <= 0) continue;
      int64_t tokens = 0;
      for (const std::string& job : group.jobs) tokens += jobs_.at(job).content.step_tokens;
      const DeviceKey key{group.base_model, workers_.at(group.worker).view.device_name};
      const double round_ms =
          slowness_[group.worker] * RoundMs(times_.at(key), tokens, group.shape.capacity_tokens);
      std::vector<std::string> ended;
      for (const std::string& job : group.jobs) {
        jobs_.at(job).steps_left -= 1000.0 * static_cast<double>(ran_s) / round_ms;
        if (jobs_.at(job).steps_left <= 0) ended.push_back(job);
      }
      for (const std::string& job : ended) {
        group.jobs.erase(job);
        JobState& state = jobs_.at(job);
        if (!state.to.empty()) groups_.at(state.to).coming.erase(job);
        state.group.clear();
        state.done = true;
      }
    }
  }

  std::mt19937& random_;
  const SchedulePolicy policy_;
  std::map<DeviceKey, TimeCoefficients> times_;
  std::map<DeviceKey, double> load_s_;
  std::map<std::string, Worker> workers_;
  std::map<std::string, double> slowness_;  // by worker
  std::map<std::string, Group> groups_;
  std::map<std::string, JobState> jobs_;
  int64_t now_s_ = 0;
  int64_t next_ = 0;
  int64_t moves_ = 0;
  int64_t evictions_ = 0;
  int64_t reforms_ = 0;
  int64_t regrown_ = 0;
};

TEST_CASE("Whatever happens, moves end, nobody starves, and no worker idles") {
  int64_t moves = 0, evictions = 0, reforms = 0, regrown = 0;
  for (const uint32_t seed : Seeds()) {
    for (uint32_t i = 0; i < 1000; ++i) {
      INFO("seed " << seed << " history " << i);
      std::mt19937 random(seed + i);
      SchedulePolicy policy;
      policy.evict = i % 3 != 0;
      policy.rebalance = i % 4 != 0;
      policy.minimum_run_s = kTick * static_cast<int64_t>(1 + random() % 30);
      Site site(random, policy);
      site.Run();
      moves += site.moves();
      evictions += site.evictions();
      reforms += site.reforms();
      regrown += site.regrown();
    }
  }
  std::cout << moves << " moves, " << evictions << " evictions, " << reforms << " reforms, "
            << regrown << " of them to grow\n";
  CHECK(moves > 1000);
  CHECK(evictions > 100);
  CHECK(reforms > 100);
  CHECK(regrown > 0);
}

}  // namespace
}  // namespace lorad::planner
