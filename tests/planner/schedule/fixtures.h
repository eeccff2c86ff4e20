// Groups and jobs of the tests of the scheduling policy.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "planner/schedule/schedule.h"
#include "tests/planner/fixtures.h"

namespace lorad::planner {

inline AdapterShape Rank(int64_t rank) { return {rank, {"q_proj", "v_proj"}}; }

// Bytes that a group with these jobs needs, as the budget must be to just hold them.
inline int64_t BudgetFor(int64_t longest, const std::vector<int64_t>& ranks) {
  int64_t bytes =
      BytesOfGroup(SmolLm2(), {CapacityFor(1024, longest), longest, {.threads = 2}}).total();
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
  int64_t moved_s = kNeverMoved;
};

inline GroupView Group(const std::string& name, const std::string& base, int64_t budget,
                       const std::vector<Trains>& jobs, int64_t longest = 500) {
  GroupView group{name, base, Shared(SmolLm2()), {1024, longest, {.threads = 2}}, budget, true,
                  {},   {}};
  for (const Trains& job : jobs) {
    group.jobs.push_back(job.job);
    group.adapters.push_back(Rank(job.rank));
    group.running.push_back({job.priority, static_cast<int64_t>(group.jobs.size()), job.running_s,
                             job.longest, 200, job.label_group, job.leaving});
    group.running.back().moved_s = job.moved_s;
  }
  return group;
}

inline QueuedJob Job(const std::string& name, int32_t priority, int64_t waited_s = 0,
                     const std::string& label_group = "", int64_t rank = 64,
                     int64_t arrival = 100) {
  QueuedJob job{name, "m", Shared(SmolLm2()), priority, arrival, 100, ShareAdapter(Rank(rank))};
  job.waited_s = waited_s;
  job.step_tokens = 200;
  job.label_group = label_group;
  return job;
}

inline QueuedJob Other(QueuedJob job) {
  job.base_model = "n";
  return job;
}

inline QueuedJob Long(QueuedJob job, int64_t longest) {
  job.longest_sequence = longest;
  return job;
}

inline std::string Text(const ClusterView& view) {
  std::string text;
  for (const Decision& decision : Schedule(view)) text += ToText(decision) + "\n";
  return text;
}

inline ClusterView View(std::vector<GroupView> groups, std::vector<QueuedJob> queue) {
  ClusterView view;
  for (const GroupView& group : groups) {
    view.workers.push_back({group.name + "-worker", group.budget_bytes, {.threads = 2}, false});
  }
  view.groups = std::move(groups);
  view.queue = std::move(queue);
  view.policy.evict = true;
  return view;
}

}  // namespace lorad::planner
