#include "planner/replay/baselines.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "planner/schedule/schedule.h"
#include "sizes/batch.h"

namespace lorad::planner {
namespace {

int64_t TokensOn(const ClusterView& view, const WorkerView& worker) {
  return worker.microbatch_tokens > 0 ? worker.microbatch_tokens : view.microbatch_tokens;
}

// The first worker that is idle, not taken and has room for the job alone.
const WorkerView* FirstIdle(const ClusterView& view, const std::set<std::string>& taken,
                            const QueuedJob& job) {
  const auto found = std::ranges::find_if(view.workers, [&](const WorkerView& worker) {
    return worker.idle && !taken.contains(worker.name) &&
           FitsAlone(job, worker.device, worker.budget_bytes, TokensOn(view, worker));
  });
  return found == view.workers.end() ? nullptr : &*found;
}

Decision Wait(const QueuedJob& job) {
  Decision decision;
  decision.kind = Decision::Kind::kWait;
  decision.jobs = {job.job};
  return decision;
}

Decision Dissolve(const GroupView& group, const QueuedJob& job) {
  Decision decision;
  decision.kind = Decision::Kind::kDissolve;
  decision.jobs = {job.job};
  decision.group = group.name;
  return decision;
}

bool IsEmpty(const GroupView& group) { return group.open && !group.forming && group.jobs.empty(); }

// These jobs and the worker, with its group where it has one, and nothing else.
ClusterView Only(const ClusterView& view, const std::string& worker,
                 const std::vector<size_t>& queue) {
  ClusterView only;
  only.microbatch_tokens = view.microbatch_tokens;
  only.policy = view.policy;
  only.policy.evict = false;
  only.policy.rebalance = false;
  only.times = view.times;
  only.load_s = view.load_s;
  only.move_s = view.move_s;
  for (const WorkerView& entry : view.workers) {
    if (entry.name == worker) only.workers.push_back(entry);
  }
  for (const GroupView& group : view.groups) {
    if (group.worker == worker) only.groups.push_back(group);
  }
  for (const size_t i : queue) only.queue.push_back(view.queue[i]);
  return only;
}

}  // namespace

std::vector<Decision> FirstComeFirstServed(const ClusterView& view) {
  std::vector<size_t> order(view.queue.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::sort(order, {}, [&](size_t i) { return view.queue[i].arrival; });
  std::vector<Decision> decisions;
  std::set<std::string> taken;
  auto next = order.begin();
  for (; next != order.end(); ++next) {
    const QueuedJob& job = view.queue[*next];
    const WorkerView* worker = FirstIdle(view, taken, job);
    if (worker == nullptr) break;
    taken.insert(worker->name);
    Decision& decision = decisions.emplace_back();
    decision.kind = Decision::Kind::kFormGroup;
    decision.jobs = {job.job};
    decision.worker = worker->name;
    decision.base_model = job.base_model;
    decision.shape = ShapeAlone(job, worker->device, worker->budget_bytes, TokensOn(view, *worker));
  }
  for (const GroupView& group : view.groups) {
    if (next == order.end()) break;
    if (IsEmpty(group)) decisions.push_back(Dissolve(group, view.queue[*next++]));
  }
  for (; next != order.end(); ++next) decisions.push_back(Wait(view.queue[*next]));
  return decisions;
}

std::vector<Decision> GangByGang(const ClusterView& view) {
  std::map<std::string, const GroupView*> group_of;
  for (const GroupView& group : view.groups) group_of.emplace(group.base_model, &group);
  std::vector<const QueuedJob*> firsts;                // of each base model, in queue order
  std::map<std::string, std::vector<size_t>> waiting;  // as many as one group may hold
  for (const size_t i : QueueOrder(view)) {
    std::vector<size_t>& jobs = waiting[view.queue[i].base_model];
    if (jobs.empty()) firsts.push_back(&view.queue[i]);
    if (jobs.size() < sizes::kSlotsMax) jobs.push_back(i);
  }
  std::vector<Decision> decisions;
  std::set<std::string> taken;
  for (const QueuedJob* first : firsts) {
    const auto group = group_of.find(first->base_model);
    const WorkerView* idle = group == group_of.end() ? FirstIdle(view, taken, *first) : nullptr;
    if (group != group_of.end() || idle != nullptr) {
      const std::string& worker = idle != nullptr ? idle->name : group->second->worker;
      taken.insert(worker);
      std::ranges::move(Schedule(Only(view, worker, waiting[first->base_model])),
                        std::back_inserter(decisions));
      continue;
    }
    const auto empty = std::ranges::find_if(view.groups, [&](const GroupView& entry) {
      return IsEmpty(entry) && !waiting.contains(entry.base_model) && !taken.contains(entry.worker);
    });
    if (empty == view.groups.end()) {
      decisions.push_back(Wait(*first));
      continue;
    }
    taken.insert(empty->worker);
    decisions.push_back(Dissolve(*empty, *first));
  }
  return decisions;
}

}  // namespace lorad::planner
