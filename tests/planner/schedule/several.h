// Workers, groups and jobs of tests of base models that need several workers: "large" fits no
// worker alone, "small" does.
#pragma once

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "planner/stages/blocks.h"
#include "tests/planner/schedule/timed.h"

namespace lorad::planner {

inline constexpr DeviceShape kCpu = {.threads = 2};

// As small models on two CPUs have it.
inline GroupShape ShapeOnTwo() {
  GroupShape shape{1024, 100, kCpu};
  shape.recomputation = Recomputation::kBlocks;
  shape.in_flight = 2;
  return shape;
}

// What a worker has: two of them hold SmolLM2 with four jobs, none does alone.
inline int64_t HalfBudget() {
  const GroupShape shape = ShapeOnTwo();
  int64_t bytes = 0;
  for (const StageRange range : {StageRange{0, 28}, StageRange{28, 60}}) {
    bytes = std::max(bytes, BytesOfGroup(SmolLm2(), shape, range).total() +
                                4 * BytesOfSlot(SmolLm2(), Rank(64), kCpu, range).total());
  }
  return bytes + bytes * 2 / 100 + 1;
}

inline WorkerView Node(const std::string& name, const std::string& host = "h",
                       const std::string& numerics = "n") {
  WorkerView worker{name, HalfBudget(), kCpu, true};
  worker.numerics_id = numerics;
  worker.host = host;
  return worker;
}

inline QueuedJob Wide(const std::string& name, int64_t arrival = 100, int32_t priority = 0) {
  QueuedJob job = Job(name, priority, 0, "", 64, arrival);
  job.base_model = "large";
  return job;
}

// One that a worker holds alone.
inline QueuedJob Narrow(const std::string& name, int64_t arrival = 100, int32_t priority = 0) {
  QueuedJob job = Wide(name, arrival, priority);
  job.base_model = "small";
  ModelShape model = SmolLm2();
  model.layers = 8;
  job.model = Shared(model);
  return job;
}

inline GroupView On(const std::string& name, const std::vector<std::string>& workers,
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
    group.adapters.push_back(*job.adapter);
    group.running.push_back({.priority = job.priority,
                             .arrival = job.arrival,
                             .running_s = 10,
                             .longest_sequence = job.longest_sequence,
                             .step_tokens = 200});
  }
  return group;
}

inline WorkerView Busy(WorkerView worker) {
  worker.idle = false;
  return worker;
}

inline ClusterView Of(std::vector<WorkerView> workers, std::vector<GroupView> groups,
                      std::vector<QueuedJob> queue) {
  ClusterView view;
  view.workers = std::move(workers);
  view.groups = std::move(groups);
  view.queue = std::move(queue);
  return view;
}

inline std::string First(const ClusterView& view) { return ToText(Schedule(view).at(0)); }

}  // namespace lorad::planner
