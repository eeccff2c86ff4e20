// The order of the queue (schedule.h).
#include <algorithm>
#include <cmath>
#include <compare>
#include <string_view>

#include "absl/container/flat_hash_map.h"
#include "planner/schedule/ends.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {
namespace {

constexpr double kForgotten = 0.01;  // of a place

}  // namespace

double PointsOf(const SchedulePolicy& policy, int64_t waited_s) {
  return std::clamp(policy.points_per_hour * static_cast<double>(waited_s) / 3600, 0.0,
                    policy.points_max);
}

void LeftLately::Add(const std::string& label_group, double now_s) {
  Counts(now_s);
  counts_[label_group] += 1;
}

std::map<std::string, double> LeftLately::Counts(double now_s) {
  const double left = std::exp2(-(now_s - then_s_) / kHalvedS);
  then_s_ = now_s;
  for (auto& [label_group, count] : counts_) count *= left;
  std::erase_if(counts_, [](const auto& entry) { return entry.second < kForgotten; });
  return counts_;
}

std::vector<size_t> QueueOrder(const ClusterView& view) {
  struct Standing {
    bool begins = false;
    int64_t less_important = 0;
    bool behind_equals = false;
    double fewer_points = 0;
    int64_t waited_less = 0;  // 0 where nobody gathers points
    int64_t arrival = 0;
    size_t job = 0;  // its index

    auto operator<=>(const Standing&) const = default;
  };
  std::vector<Standing> order;
  order.reserve(view.queue.size());
  const bool gather = view.policy.points_per_hour > 0;
  for (const QueuedJob& job : view.queue) {
    order.push_back({!job.resumes, -int64_t{job.priority}, !job.first_of_equals,
                     -PointsOf(view.policy, job.waited_s), gather ? -job.waited_s : 0, job.arrival,
                     order.size()});
  }
  // Mostly the queue stands in its order already.
  if (!std::ranges::is_sorted(order)) std::ranges::sort(order);
  if (view.policy.fair_share) {
    absl::flat_hash_map<std::string_view, double> shares(view.left_lately.begin(),
                                                         view.left_lately.end());
    for (const GroupView& group : view.groups) {
      for (const RunningJob& job : group.running) ++shares[job.label_group];
    }
    // Within a label group each has at least a point less than the one before it, so their order
    // stands.
    for (Standing& standing : order) {
      standing.fewer_points += shares[view.queue[standing.job].label_group]++;
    }
    std::ranges::sort(order);
  }
  std::vector<size_t> jobs;
  jobs.reserve(order.size());
  for (const Standing& standing : order) jobs.push_back(standing.job);
  return jobs;
}

Workload StepOf(const QueuedJob& job) {
  return StepOf(static_cast<double>(job.step_tokens), job.step_squared_lengths,
                AdapterParameters(*job.model, *job.adapter));
}

}  // namespace lorad::planner
