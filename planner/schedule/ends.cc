#include "planner/schedule/ends.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <numeric>
#include <tuple>

namespace lorad::planner {
namespace {

bool EndsBefore(const JobWork& a, const JobWork& b) {
  return std::tie(a.remaining_steps, a.step_tokens) < std::tie(b.remaining_steps, b.step_tokens);
}

}  // namespace

JobWork WithEvaluations(const JobWork& steps, const EvaluationWork& evaluations,
                        double evaluated_share) {
  if (evaluations.parts == 0) return steps;
  const int64_t rounds = steps.remaining_steps + evaluations.parts;
  const double tokens =
      static_cast<double>(steps.step_tokens) * static_cast<double>(steps.remaining_steps) +
      evaluated_share * static_cast<double>(evaluations.tokens);
  const int64_t mean = std::llround(tokens / static_cast<double>(rounds));
  return {.step_tokens = std::max<int64_t>(mean, 1), .remaining_steps = rounds};
}

TimeCoefficients OfPipeline(const TimeCoefficients& times, double slowest_share) {
  return slowest_share * times;
}

double RoundMs(const TimeCoefficients& times, int64_t step_tokens, int64_t capacity) {
  const auto tokens = static_cast<double>(step_tokens);
  const double microbatches = std::max(1.0, tokens / static_cast<double>(capacity));
  return times.constant_ms * microbatches + times.token_ms * tokens;
}

std::vector<double> EndsOf(const TimeCoefficients& times, int64_t capacity,
                           const std::vector<JobWork>& jobs) {
  std::vector<size_t> order(jobs.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return EndsBefore(jobs[a], jobs[b]); });
  int64_t tokens = 0;
  for (const JobWork& job : jobs) tokens += job.step_tokens;
  std::vector<double> ends(jobs.size());
  double now_ms = 0;
  int64_t done = 0;  // rounds
  for (const size_t i : order) {
    const auto rounds = static_cast<double>(jobs[i].remaining_steps - done);
    now_ms += rounds * RoundMs(times, tokens, capacity);
    ends[i] = now_ms / 1000;
    done = jobs[i].remaining_steps;
    tokens -= jobs[i].step_tokens;
  }
  return ends;
}

void Crew::Add(const JobWork& job) {
  jobs_.insert(std::upper_bound(jobs_.begin(), jobs_.end(), job, EndsBefore), job);
  step_tokens_ += job.step_tokens;
}

size_t Crew::Find(const JobWork& job) const {
  const auto found = std::lower_bound(jobs_.begin(), jobs_.end(), job, EndsBefore);
  assert(found != jobs_.end() && *found == job);
  return static_cast<size_t>(found - jobs_.begin());
}

void Crew::Remove(const JobWork& job) {
  jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(Find(job)));
  step_tokens_ -= job.step_tokens;
}

double Crew::SumOfEnds(const TimeCoefficients& times, int64_t capacity, const JobWork* comes,
                       std::optional<size_t> leaves) const {
  int64_t tokens = step_tokens_;
  size_t left = jobs_.size();
  if (comes != nullptr) {
    tokens += comes->step_tokens;
    ++left;
  }
  if (leaves) {
    tokens -= jobs_[*leaves].step_tokens;
    --left;
  }
  double sum_ms = 0;
  int64_t done = 0;
  const auto end = [&](const JobWork& job) {
    if (const int64_t rounds = job.remaining_steps - done; rounds > 0) {
      sum_ms += static_cast<double>(left) * static_cast<double>(rounds) *
                RoundMs(times, tokens, capacity);
      done = job.remaining_steps;
    }
    tokens -= job.step_tokens;
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
