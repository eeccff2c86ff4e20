#include "planner/sweep/layout.h"

#include <algorithm>
#include <cassert>
#include <limits>
#include <map>
#include <tuple>

namespace lorad::planner {
namespace {

// First-fit decreasing into sets: members come with their steps falling, so a set is as long as its
// first member.
int64_t LayOutSets(const SweepProblem& problem, const SweepProblem::Degree& degree,
                   const SweepMembers& members, std::vector<SweepRun>* runs) {
  struct Set {
    int64_t room;
    int64_t begin;
  };
  std::vector<Set> sets;
  int64_t iterations = 0;
  for (const auto& [kind, count] : members) {
    const SweepProblem::Kind& shape = problem.kinds()[kind];
    size_t at = 0;
    for (int32_t i = 0; i < count; ++i) {
      while (at < sets.size() && sets[at].room < shape.bytes) ++at;
      if (at == sets.size()) {
        sets.push_back({degree.capacity_bytes, iterations});
        iterations += shape.steps;
      }
      sets[at].room -= shape.bytes;
      if (runs != nullptr) {
        runs->push_back(
            {kind, static_cast<int32_t>(at), sets[at].begin, sets[at].begin + shape.steps});
      }
    }
  }
  return iterations;
}

// List scheduling: whenever memory is freed, what fits starts, in the list's order.
int64_t LayOutReplacing(const SweepProblem& problem, const SweepProblem::Degree& degree,
                        const SweepMembers& members, std::vector<SweepRun>* runs) {
  struct Running {
    int64_t end;
    int64_t bytes;
  };
  const auto later = [](const Running& a, const Running& b) { return a.end > b.end; };
  SweepMembers pending = members;
  std::vector<Running> running;  // heap, the first to end in front
  int64_t now = 0, room = degree.capacity_bytes, iterations = 0;
  for (;;) {
    int64_t least = std::numeric_limits<int64_t>::max();  // bytes of any that waits
    for (auto& [kind, count] : pending) {
      const SweepProblem::Kind& shape = problem.kinds()[kind];
      const auto starting = static_cast<int32_t>(
          shape.bytes == 0 ? count : std::min<int64_t>(count, room / shape.bytes));
      if (starting > 0) {
        count -= starting;
        room -= starting * shape.bytes;
        running.push_back({now + shape.steps, starting * shape.bytes});
        std::push_heap(running.begin(), running.end(), later);
        iterations = std::max(iterations, now + shape.steps);
        if (runs != nullptr) {
          runs->insert(runs->end(), starting, {kind, 0, now, now + shape.steps});
        }
      }
      if (count > 0) least = std::min(least, shape.bytes);
    }
    std::erase_if(pending, [](const auto& entry) { return entry.second == 0; });
    if (pending.empty()) break;
    while (room < least || (!running.empty() && running.front().end == now)) {
      assert(!running.empty());
      now = running.front().end;
      room += running.front().bytes;
      std::pop_heap(running.begin(), running.end(), later);
      running.pop_back();
    }
  }
  return iterations;
}

}  // namespace

int64_t LayOut(const SweepProblem& problem, const SweepProblem::Degree& degree,
               const SweepMembers& members, bool replace, bool both, std::vector<SweepRun>* runs) {
  if (!replace) return LayOutSets(problem, degree, members, runs);
  const int64_t longest_first = LayOutReplacing(problem, degree, members, runs);
  if (!both || members.empty() || longest_first == problem.kinds()[members[0].first].steps) {
    return longest_first;  // nobody waits
  }
  SweepMembers largest = members;
  std::stable_sort(largest.begin(), largest.end(), [&](const auto& a, const auto& b) {
    return problem.kinds()[a.first].bytes > problem.kinds()[b.first].bytes;
  });
  const int64_t largest_first = LayOutReplacing(problem, degree, largest, nullptr);
  if (largest_first >= longest_first) return longest_first;
  if (runs != nullptr) {
    runs->clear();
    LayOutReplacing(problem, degree, largest, runs);
  }
  return largest_first;
}

std::vector<SweepJob> JobsOf(const SweepProblem& problem, const SweepProblem::Degree& degree,
                             const std::vector<SweepRun>& runs, const std::vector<int>& gpus,
                             double start_s, std::vector<std::vector<int>>* free_indexes) {
  // Seconds at each iteration where somebody starts or ends.
  std::map<int64_t, double> rate_change;  // of the work seconds an iteration
  for (const SweepRun& run : runs) {
    const double work =
        degree.work_s[run.kind] / static_cast<double>(problem.kinds()[run.kind].steps);
    rate_change[run.begin] += work;
    rate_change[run.end] -= work;
  }
  std::map<int64_t, double> seconds;
  double at = start_s, rate = 0;
  int64_t before = 0;
  for (const auto& [iteration, change] : rate_change) {
    at += static_cast<double>(iteration - before) * (degree.fixed_s + std::max(rate, 0.0));
    seconds[iteration] = at;
    before = iteration;
    rate += change;
  }
  std::vector<SweepJob> jobs;
  for (const SweepRun& run : runs) {
    if (jobs.size() <= static_cast<size_t>(run.set)) jobs.resize(run.set + 1);
    SweepJob& job = jobs[run.set];
    std::vector<int>& indexes = (*free_indexes)[run.kind];
    assert(!indexes.empty());
    job.members.push_back({indexes.back(), seconds[run.begin], seconds[run.end]});
    indexes.pop_back();
  }
  for (SweepJob& job : jobs) {
    job.gpus = gpus;
    std::sort(job.members.begin(), job.members.end(), [](const auto& a, const auto& b) {
      return std::tie(a.start_s, a.configuration) < std::tie(b.start_s, b.configuration);
    });
    job.start_s = job.members.front().start_s;
    for (const SweepJob::Member& member : job.members) {
      job.end_s = std::max(job.end_s, member.end_s);
    }
  }
  return jobs;
}

std::vector<std::vector<int>> FreeIndexes(const SweepProblem& problem) {
  std::vector<std::vector<int>> indexes;
  for (const SweepProblem::Kind& kind : problem.kinds()) {
    indexes.emplace_back(kind.configurations.rbegin(), kind.configurations.rend());
  }
  return indexes;
}

void FinishPlan(const SweepProblem& problem, SweepPlan* plan) {
  std::stable_sort(plan->jobs.begin(), plan->jobs.end(), [](const SweepJob& a, const SweepJob& b) {
    return std::tie(a.start_s, a.gpus) < std::tie(b.start_s, b.gpus);
  });
  plan->lower_bound_s = problem.LowerBoundSeconds();
  double gpu_seconds = 0;
  for (const SweepJob& job : plan->jobs) {
    plan->makespan_s = std::max(plan->makespan_s, job.end_s);
    gpu_seconds += job.gpu_seconds();
  }
  const double last_start = plan->jobs.back().start_s;
  double in_use = 0;
  for (const SweepJob& job : plan->jobs) {
    if (job.end_s > last_start) in_use += static_cast<double>(job.gpus.size());
  }
  const double gpus = problem.gpus();
  plan->approximation_ratio = plan->makespan_s * gpus / gpu_seconds;
  const double tail = (plan->makespan_s - last_start) * (gpus - in_use) / gpus;
  plan->ratio_bound = plan->makespan_s / (plan->makespan_s - tail);
}

}  // namespace lorad::planner
