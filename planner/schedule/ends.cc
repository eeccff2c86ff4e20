#include "planner/schedule/ends.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <tuple>

namespace lorad::planner {
namespace {

bool EndsBefore(const JobWork& a, const JobWork& b) {
  const auto key = [](const JobWork& job) {
    return std::tie(job.remaining_steps, job.step.tokens, job.step.squared_lengths,
                    job.step.adapter_work);
  };
  return key(a) < key(b);
}

}  // namespace

Workload WorkloadOf(double tokens, double squared_lengths, int64_t adapter_parameters) {
  return {tokens, std::round(squared_lengths), static_cast<double>(adapter_parameters) * tokens};
}

Workload OptimizerOf(int64_t adapter_parameters) {
  return {0, 0, static_cast<double>(adapter_parameters) * kTokensOfStep};
}

Workload StepOf(double tokens, double squared_lengths, int64_t adapter_parameters) {
  Workload step = WorkloadOf(tokens, squared_lengths, adapter_parameters);
  step += OptimizerOf(adapter_parameters);
  return step;
}

JobWork WithEvaluations(const JobWork& steps, const EvaluationWork& evaluations,
                        int64_t adapter_parameters, double evaluated_share) {
  if (evaluations.parts == 0) return steps;
  Workload all = static_cast<double>(steps.remaining_steps) * steps.step;
  all += evaluated_share * WorkloadOf(static_cast<double>(evaluations.tokens),
                                      evaluations.squared_lengths, adapter_parameters);
  const int64_t rounds = steps.remaining_steps + evaluations.parts;
  const Workload mean = 1 / static_cast<double>(rounds) * all;
  return {.step = {std::max(std::round(mean.tokens), 1.0), std::round(mean.squared_lengths),
                   std::round(mean.adapter_work)},
          .remaining_steps = rounds};
}

TimeCoefficients OfPipeline(const TimeCoefficients& times, double slowest_share) {
  return slowest_share * times;
}

double RoundMs(const TimeCoefficients& times, const Workload& round, int64_t capacity) {
  return times.Ms(round, std::max(1.0, round.tokens / static_cast<double>(capacity)));
}

double SharingGain(const TimeCoefficients& times, const Workload& round, const Workload& comes,
                   int64_t capacity) {
  Workload both = round;
  both += comes;
  const double microbatches = std::max(1.0, round.tokens / static_cast<double>(capacity));
  const double as_full_as_now = microbatches * both.tokens / round.tokens;
  const double ms = RoundMs(times, both, capacity);
  return ms > 0 ? times.Ms(both, as_full_as_now) / ms - 1 : 0;
}

std::vector<double> EndsOf(const TimeCoefficients& times, int64_t capacity,
                           const std::vector<JobWork>& jobs) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return EndsBefore(jobs[a], jobs[b]); });
  Workload round;
  for (const JobWork& job : jobs) round += job.step;
  std::vector<double> ends(jobs.size());
  double now_ms = 0;
  int64_t done = 0;  // rounds
  for (const size_t i : order) {
    const auto rounds = static_cast<double>(jobs[i].remaining_steps - done);
    now_ms += rounds * RoundMs(times, round, capacity);
    ends[i] = now_ms / 1000;
    done = jobs[i].remaining_steps;
    round -= jobs[i].step;
  }
  return ends;
}

void Crew::Add(const JobWork& job) {
  jobs_.insert(std::upper_bound(jobs_.begin(), jobs_.end(), job, EndsBefore), job);
  round_ += job.step;
}

size_t Crew::Find(const JobWork& job) const {
  const auto found = std::lower_bound(jobs_.begin(), jobs_.end(), job, EndsBefore);
  assert(found != jobs_.end() && *found == job);
  return static_cast<size_t>(found - jobs_.begin());
}

void Crew::Remove(const JobWork& job) {
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(Find(job)));
  round_ -= job.step;
}

double Crew::SumOfEnds(const TimeCoefficients& times, int64_t capacity, const JobWork* comes,
                       std::optional<size_t> leaves) const {
  return SumOver(times, capacity, comes, leaves,
                 [](size_t jobs) { return static_cast<double>(jobs); });
}

double Crew::LastEnd(const TimeCoefficients& times, int64_t capacity, const JobWork* comes) const {
  return SumOver(times, capacity, comes, std::nullopt, [](size_t) { return 1.0; });
}

template <class Weigh>
double Crew::SumOver(const TimeCoefficients& times, int64_t capacity, const JobWork* comes,
                     std::optional<size_t> leaves, Weigh weigh) const {
  Workload round = round_;
  size_t left = jobs_.size();
  if (comes != nullptr) {
    round += comes->step;
    ++left;
  }
  if (leaves) {
    round -= jobs_[*leaves].step;
    --left;
  }
  double sum_ms = 0;
  int64_t done = 0;
  const auto end = [&](const JobWork& job) {
    if (const int64_t rounds = job.remaining_steps - done; rounds > 0) {
      sum_ms += weigh(left) * static_cast<double>(rounds) * RoundMs(times, round, capacity);
      done = job.remaining_steps;
    }
    round -= job.step;
    --left;
  };
  for (size_t i = 0; i < jobs_.size(); ++i) {
    if (comes != nullptr && EndsBefore(*comes, jobs_[i])) {
      end(*comes);
      comes = nullptr;
    }
    if (!leaves || i != *leaves) end(jobs_[i]);
  }
  if (comes != nullptr) end(*comes);
  return sum_ms / 1000;
}

}  // namespace lorad::planner
