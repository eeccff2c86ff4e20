#include "planner/sweep/plan.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "planner/sweep/layout.h"

namespace lorad::planner {
namespace {

// Iterations and seconds fit one another but for this much rounding.
constexpr double kRounding = 1e-6;

std::string CheckJob(const SweepProblem& problem, const std::vector<int>& kind_of,
                     const SweepJob& job) {
  const SweepProblem::Degree* degree = nullptr;
  for (const SweepProblem::Degree& entry : problem.degrees()) {
    if (entry.gpus == static_cast<int>(job.gpus.size())) degree = &entry;
  }
  if (degree == nullptr) return absl::StrCat("no degree of ", job.gpus.size(), " GPUs");
  std::vector<double> times;
  for (const SweepJob::Member& member : job.members) {
    times.push_back(member.start_s);
    times.push_back(member.end_s);
  }
  std::sort(times.begin(), times.end());
  if (times.empty() || std::abs(times.front() - job.start_s) > kRounding * job.end_s ||
      std::abs(times.back() - job.end_s) > kRounding * job.end_s) {
    return "a job that starts before its members, or ends after them";
  }
  std::vector<double> done(job.members.size(), 0);  // iterations
  for (size_t t = 0; t + 1 < times.size(); ++t) {
    const double length = times[t + 1] - times[t];
    if (length <= 0) continue;
    int64_t bytes = 0;
    double iteration_s = degree->fixed_s;
    std::vector<size_t> active;
    for (size_t m = 0; m < job.members.size(); ++m) {
      if (job.members[m].start_s > times[t] || job.members[m].end_s < times[t + 1]) continue;
      const int kind = kind_of[job.members[m].configuration];
      bytes += problem.kinds()[kind].bytes;
      iteration_s += degree->work_s[kind] / static_cast<double>(problem.kinds()[kind].steps);
      active.push_back(m);
    }
    if (bytes > degree->capacity_bytes && length > kRounding * job.end_s) return "out of memory";
    for (size_t m : active) done[m] += length / iteration_s;
  }
  for (size_t m = 0; m < job.members.size(); ++m) {
    const int kind = kind_of[job.members[m].configuration];
    const auto steps = static_cast<double>(problem.kinds()[kind].steps);
    if (std::abs(done[m] - steps) > kRounding * steps * static_cast<double>(times.size())) {
      return absl::StrCat("configuration ", job.members[m].configuration, " makes ", done[m],
                          " of ", steps, " steps");
    }
  }
  return "";
}

}  // namespace

std::string CheckSweepPlan(const SweepProblem& problem, const SweepPlan& plan) {
  std::vector<int> kind_of;
  for (size_t k = 0; k < problem.kinds().size(); ++k) {
    for (int index : problem.kinds()[k].configurations) {
      if (kind_of.size() <= static_cast<size_t>(index)) kind_of.resize(index + 1, -1);
      kind_of[index] = static_cast<int>(k);
    }
  }
  std::vector<int> seen(kind_of.size(), 0);
  std::map<int, std::vector<std::pair<double, double>>> used;  // of each GPU
  for (const SweepJob& job : plan.jobs) {
    if (std::string broken = CheckJob(problem, kind_of, job); !broken.empty()) return broken;
    for (const SweepJob::Member& member : job.members) ++seen[member.configuration];
    for (int gpu : job.gpus) {
      if (gpu < 0 || gpu >= problem.gpus()) return absl::StrCat("no GPU ", gpu);
      used[gpu].emplace_back(job.start_s, job.end_s);
    }
  }
  for (size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] != 1) return absl::StrCat("configuration ", i, " trains ", seen[i], " times");
  }
  for (auto& [gpu, spans] : used) {
    std::sort(spans.begin(), spans.end());
    for (size_t i = 1; i < spans.size(); ++i) {
      if (spans[i].first < spans[i - 1].second - kRounding * plan.makespan_s) {
        return absl::StrCat("GPU ", gpu, " works for two jobs at a time");
      }
    }
  }
  if (plan.makespan_s < plan.lower_bound_s * (1 - kRounding)) return "faster than its lower bound";
  return "";
}

std::string ToText(const SweepPlan& plan, const std::vector<SweepConfiguration>& configurations) {
  std::string text = absl::StrFormat(
      "makespan %.4g s, lower bound %.4g s (%.3f), ratio %.3f (bound %.3f), by %s%s\n",
      plan.makespan_s, plan.lower_bound_s, plan.makespan_s / plan.lower_bound_s,
      plan.approximation_ratio, plan.ratio_bound, plan.by,
      plan.exact_sets ? "" : ", node limit reached");
  for (const SweepJob& job : plan.jobs) {
    absl::StrAppendFormat(&text, "GPU %s: %.4g .. %.4g s:", absl::StrJoin(job.gpus, ","),
                          job.start_s, job.end_s);
    double at = job.start_s;
    for (const SweepJob::Member& member : job.members) {
      if (member.start_s > at) absl::StrAppendFormat(&text, " @%.4g", member.start_s);
      at = member.start_s;
      absl::StrAppend(&text, " ", configurations[member.configuration].name);
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace lorad::planner
