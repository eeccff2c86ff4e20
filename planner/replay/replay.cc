#include "planner/replay/replay.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "planner/replay/site.h"

namespace lorad::planner {
namespace {

// The first moment at which the policy may be asked.
double TurnAfter(double moment_s, double turn_s) {
  if (turn_s <= 0) return moment_s;
  return std::max(moment_s, std::ceil(moment_s / turn_s) * turn_s);
}

// Of the time in which nothing happens.
constexpr double kLookShare = 1e-3;

// Whether more was decided than that all wait.
bool Ask(Site& site, const Decide& decide) {
  bool any = false;
  for (bool again = true; again;) {
    again = false;
    ++site.outcome().turns;
    for (const Decision& decision : decide(site.View())) {
      any |= decision.kind != Decision::Kind::kWait;
      again |= site.Carry(decision);
    }
  }
  return any;
}

double FirstComes(const History& history) {
  double first = kNever;
  for (const HistoryJob& job : history.jobs) first = std::min(first, job.comes_s);
  return first;
}

// Adds up jobs that ended.
class Sums {
 public:
  explicit Sums(const History& history) : first_s_(FirstComes(history)) {}

  void Add(const HistoryJob& job, double waited_s, double ends_s) {
    ++summary_.ended;
    last_s_ = std::max(last_s_, ends_s);
    completion_s_ += ends_s - job.comes_s;
    wait_s_ += waited_s;
    summary_.worst_wait_s = std::max(summary_.worst_wait_s, waited_s);
    tokens_ += static_cast<double>(job.content.remaining_steps) *
               static_cast<double>(job.content.step_tokens);
  }

  double tokens() const { return tokens_; }
  double first_s() const { return first_s_; }
  double last_s() const { return last_s_; }

  Summary Make() const {
    Summary summary = summary_;
    if (summary.ended == 0) return summary;
    const auto jobs = static_cast<double>(summary.ended);
    summary.makespan_s = last_s_ - first_s_;
    summary.mean_completion_s = completion_s_ / jobs;
    summary.mean_wait_s = wait_s_ / jobs;
    if (summary.makespan_s > 0) summary.tokens_per_s = tokens_ / summary.makespan_s;
    return summary;
  }

 private:
  Summary summary_;
  double first_s_ = 0;
  double last_s_ = 0;
  double completion_s_ = 0;
  double wait_s_ = 0;
  double tokens_ = 0;
};

}  // namespace

Outcome Replay(const History& history, const SchedulePolicy& policy, const Decide& decide,
               const Turns& turns) {
  Site site(history, policy);
  double turn_s = kNever;
  double quiet_since_s = 0;
  while (!site.AllEnded()) {
    const double next_s = std::min(site.Next(), turn_s);
    if (next_s == kNever) break;  // who waits now fits no worker that there is or will be
    if (site.GoTo(next_s)) {
      turn_s = std::min(turn_s, TurnAfter(next_s, turns.turn_s));
      quiet_since_s = next_s;
    }
    if (turn_s > next_s) continue;
    if (Ask(site, decide)) quiet_since_s = next_s;
    const double look_s = std::max(turns.look_s, kLookShare * (next_s - quiet_since_s));
    turn_s = site.Next() == kNever ? kNever : next_s + look_s;
  }
  return std::move(site.outcome());
}

Summary Summarize(const History& history, const Outcome& outcome) {
  Sums sums(history);
  for (size_t j = 0; j < history.jobs.size(); ++j) {
    const JobOutcome& job = outcome.jobs[j];
    if (job.ends_s < kNever) sums.Add(history.jobs[j], job.waited_s, job.ends_s);
  }
  Summary summary = sums.Make();
  double there_s = 0;
  for (const HistoryWorker& worker : history.workers) {
    const double from_s = std::max(worker.comes_s, sums.first_s());
    there_s += std::max(0.0, std::min(worker.goes_s, sums.last_s()) - from_s);
  }
  if (there_s > 0) summary.idle_share = std::max(0.0, 1 - outcome.training_s / there_s);
  if (outcome.training_s > 0) summary.tokens_per_training_s = sums.tokens() / outcome.training_s;
  return summary;
}

Summary SummarizeRecord(const History& history) {
  Sums sums(history);
  for (const HistoryJob& job : history.jobs) {
    if (!job.started_s || !job.ended_s) continue;
    sums.Add(job, *job.started_s - job.comes_s, *job.ended_s);
  }
  return sums.Make();
}

}  // namespace lorad::planner
