// Workers, groups and jobs of tests that weigh times: devices "slow" and "fast", base models "m"
// and "n".
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/schedule/ends.h"
#include "tests/planner/schedule/fixtures.h"

namespace lorad::planner {

inline constexpr int64_t kBig = int64_t{8} << 30;

inline WorkerView IdleOn(const std::string& name, const std::string& device = "slow",
                         const std::string& holds = "") {
  WorkerView worker{name, kBig, {.threads = 2}, true};
  worker.device_name = device;
  worker.loaded_base_model = holds;
  return worker;
}

inline QueuedJob Steps(const std::string& name, int64_t steps, int64_t tokens = 200,
                       int64_t arrival = 0, const std::string& base = "m") {
  QueuedJob job = Job(name, 0, 0, "", 8, arrival);
  job.base_model = base;
  job.step_tokens = tokens;
  job.remaining_steps = steps;
  return job;
}

// 100 ms and 1 ms a token; "fast" devices take half of that.
inline ClusterView Timed(std::vector<WorkerView> workers, std::vector<QueuedJob> queue,
                         double load_s = 0) {
  ClusterView view;
  view.workers = std::move(workers);
  view.queue = std::move(queue);
  for (const char* base : {"m", "n"}) {
    view.times[{base, "slow"}] = {100, 1, 0};
    view.times[{base, "fast"}] = {50, 0.5, 0};
    view.load_s[{base, "slow"}] = view.load_s[{base, "fast"}] = load_s;
  }
  return view;
}

inline GroupView Running(const std::string& name, const std::string& device,
                         const std::vector<JobWork>& jobs) {
  std::vector<Trains> trains;
  for (size_t i = 0; i < jobs.size(); ++i) trains.push_back({name + std::to_string(i)});
  GroupView group = Group(name, "m", kBig, trains);
  group.worker = name + "-worker";
  group.device_name = device;
  for (size_t i = 0; i < jobs.size(); ++i) {
    group.running[i].step_tokens = static_cast<int64_t>(jobs[i].step.tokens);
    group.running[i].remaining_steps = jobs[i].remaining_steps;
  }
  return group;
}

inline ClusterView With(ClusterView view, const std::vector<GroupView>& groups) {
  for (const GroupView& group : groups) {
    WorkerView worker = IdleOn(group.worker, group.device_name);
    worker.idle = false;
    view.workers.push_back(worker);
    view.groups.push_back(group);
  }
  return view;
}

inline GroupView Forming(GroupView group, double ready_s = 0) {
  group.forming = true;
  group.ready_s = ready_s;
  return group;
}

}  // namespace lorad::planner
