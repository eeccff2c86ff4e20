#include "planner/window/learning_rate.h"

#include <algorithm>
#include <cmath>

namespace lorad::planner {

// transformers makes a factor first and multiplies it by the peak; in the order of its roundings.
double LearningRate(const LearningRateOptions& options, int64_t t) {
  if (t < options.warmup_steps) {
    return options.peak * (static_cast<double>(t) / static_cast<double>(options.warmup_steps));
  }
  if (options.schedule == Schedule::kConstant) return options.peak;
  const double after = static_cast<double>(std::max<int64_t>(
      1, options.total_steps - options.warmup_steps));  // transformers' max(1, ..)
  const double left = static_cast<double>(std::max<int64_t>(0, options.total_steps - t));
  if (options.schedule == Schedule::kLinear) return options.peak * (left / after);
  const double progress = static_cast<double>(t - options.warmup_steps) / after;
  return options.peak * std::max(0.0, 0.5 * (1.0 + std::cos(M_PI * progress)));
}

}  // namespace lorad::planner
