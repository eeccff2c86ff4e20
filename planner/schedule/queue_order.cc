// The order of the queue, and how many jobs still help a group (schedule.h).
#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {

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
  std::map<std::string, int64_t> shares;
  for (const GroupView& group : view.groups) {
    for (const RunningJob& job : group.running) ++shares[job.label_group];
  }
  std::vector<size_t> fair;
  auto begin = order.begin();
  while (begin != order.end()) {
    const QueuedJob& first = view.queue[*begin];
    const auto end = std::find_if(begin, order.end(), [&](size_t i) {
      return view.queue[i].priority != first.priority || view.queue[i].resumes != first.resumes;
    });
    std::map<std::string, std::vector<size_t>> queues;  // last first
    for (auto i = end; i != begin;) queues[view.queue[*--i].label_group].push_back(*i);
    while (!queues.empty()) {
      const auto best =
          std::min_element(queues.begin(), queues.end(), [&](const auto& a, const auto& b) {
            const auto fair_points = [&](const auto& queue) {
              return points(queue.second.back()) - static_cast<double>(shares[queue.first]);
            };
            return key(a.second.back(), fair_points(a)) < key(b.second.back(), fair_points(b));
          });
      fair.push_back(best->second.back());
      ++shares[best->first];
      best->second.pop_back();
      if (best->second.empty()) queues.erase(best);
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
