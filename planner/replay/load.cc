#include "planner/replay/load.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "planner/schedule/schedule.h"

namespace lorad::planner {
namespace {

constexpr double kStepsMax = 1e9;

int64_t DrawOf(const Shared<LogNormal>& mixture, Draw& draw) {
  return draw.Length({mixture.Pick(draw)});
}

// Geometric, 1 at least.
size_t BurstOf(double mean, Draw& draw) {
  if (mean <= 1) return 1;
  return 1 + static_cast<size_t>(std::log(draw.Uniform()) / std::log1p(-1 / mean));
}

int64_t StepsFor(int64_t alone_s, const QueuedJob& job, const TimeCoefficients& times) {
  const double step_ms = times.Ms(StepOf(job), 1);
  const double steps = std::round(1e3 * static_cast<double>(alone_s) / step_ms);
  return static_cast<int64_t>(std::clamp(steps, 1.0, kStepsMax));
}

}  // namespace

std::vector<HistoryJob> DrawJobs(const Load& load) {
  Draw draw(load.seed);
  std::vector<HistoryJob> jobs;
  double now_s = 0;
  while (jobs.size() < load.jobs) {
    const Load::BaseModel& base_model = load.base_models.Pick(draw);
    const int64_t priority = load.priorities.Pick(draw);
    const uint64_t user = draw.Next() % static_cast<uint64_t>(load.users);
    for (size_t left = BurstOf(load.burst, draw); left > 0 && jobs.size() < load.jobs; --left) {
      HistoryJob& job = jobs.emplace_back();
      QueuedJob& content = job.content;
      job.comes_s = now_s;
      content.job = absl::StrCat("j", jobs.size());
      content.base_model = base_model.name;
      content.model = base_model.shape;
      content.priority = static_cast<int32_t>(priority);
      content.label_group = absl::StrCat("u", user);
      content.adapter =
          ShareAdapter(AdapterShape(load.ranks[draw.Next() % load.ranks.size()], load.targets));
      content.longest_sequence = DrawOf(load.longest_sequence, draw);
      content.step_tokens = DrawOf(load.step_tokens, draw);
      content.remaining_steps =
          load.steps.kinds.empty() ? StepsFor(DrawOf(load.alone_s, draw), content, base_model.times)
                                   : DrawOf(load.steps, draw);
    }
    now_s += draw.Exponential(load.gap_s * load.burst);
  }
  return jobs;
}

}  // namespace lorad::planner
