// The learning rate of a step, bit for bit as transformers' schedules compute it.
#pragma once

#include <cstdint>

namespace lorad::planner {

enum class Schedule { kConstant, kLinear, kCosine };

struct LearningRateOptions {
  Schedule schedule = Schedule::kLinear;
  double peak = 0;
  int64_t warmup_steps = 0;
  int64_t total_steps = 0;
};

// Step t = 0, 1, ...: t < warmup: peak (t / warmup); then constant: peak; linear:
// peak ((steps - t) / (steps - warmup)); cosine:
// peak ((1 + cos(pi (t - warmup) / (steps - warmup))) / 2). Brackets are rounded first, in float64.
// The first step of a job (its step 1) is t = 0.
double LearningRate(const LearningRateOptions& options, int64_t t);

}  // namespace lorad::planner
