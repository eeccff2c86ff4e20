// The order of the queue, and how many jobs still help a group (schedule.h).
#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <queue>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {
namespace {

// Those of a label group that wait, in queue order, but for shares.
struct LabelQueue {
  int64_t* share = nullptr;  // its jobs that count
  std::vector<size_t> jobs;
  size_t next = 0;
};

}  // namespace

double PointsOf(const SchedulePolicy& policy, int64_t waited_s) {
  return std::clamp(policy.points_per_hour * static_cast<double>(waited_s) / 3600, 0.0,
                    policy.points_max);
}

std::vector<size_t> QueueOrder(const ClusterView& view) {
  std::vector<size_t> order(view.queue.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i, double points) {
    const QueuedJob& job = view.queue[i];
    return std::make_tuple(!job.resumes, -int64_t{job.priority}, -points, job.arrival, i);
  };
  std::vector<double> points_of;
  points_of.reserve(order.size());
  for (const QueuedJob& job : view.queue) {
    points_of.push_back(PointsOf(view.policy, job.waited_s));
  }
  const auto points = [&](size_t i) { return points_of[i]; };
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return key(a, points(a)) < key(b, points(b)); });
  if (!view.policy.fair_share) return order;
  // One after another, as each that is taken counts against its label group. Within a label group
  // the order stands, so its first that is left is the only one to compare.
  std::map<std::string_view, int64_t> shares;
  for (const GroupView& group : view.groups) {
    for (const RunningJob& job : group.running) ++shares[job.label_group];
  }
  std::vector<size_t> fair;
  fair.reserve(order.size());
  auto begin = order.begin();
  while (begin != order.end()) {
    const QueuedJob& first = view.queue[*begin];
    const auto end = std::find_if(begin, order.end(), [&](size_t i) {
      return view.queue[i].priority != first.priority || view.queue[i].resumes != first.resumes;
    });
    std::map<std::string_view, LabelQueue> queues;
    for (auto i = begin; i != end; ++i) {
      const std::string_view label = view.queue[*i].label_group;
      LabelQueue& queue = queues[label];
      queue.share = &shares[label];
      queue.jobs.push_back(*i);
    }
    const auto fair_key = [&](const LabelQueue& queue) {
      const size_t i = queue.jobs[queue.next];
      return key(i, points(i) - static_cast<double>(*queue.share));
    };
    using Candidate = std::pair<decltype(key(0, 0)), LabelQueue*>;
    std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> candidates;
    for (auto& [label, queue] : queues) candidates.emplace(fair_key(queue), &queue);
    while (!candidates.empty()) {
      LabelQueue& queue = *candidates.top().second;
      candidates.pop();
      fair.push_back(queue.jobs[queue.next++]);
      ++*queue.share;
      if (queue.next < queue.jobs.size()) candidates.emplace(fair_key(queue), &queue);
    }
    begin = end;
  }
  return fair;
}

double GroupThroughput(const TimeCoefficients& times, int64_t step_tokens, int64_t capacity) {
  if (step_tokens <= 0) return 0;
  const double ms = RoundMs(times, step_tokens, capacity);
  return ms > 0 ? static_cast<double>(step_tokens) / ms : 0;
}

}  // namespace lorad::planner
