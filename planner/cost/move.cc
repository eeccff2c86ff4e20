#include "planner/cost/move.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace lorad::planner {

std::string MoveDecision::ToText() const {
  return absl::StrCat(move ? "move: " : "stay: ", reason);
}

absl::StatusOr<MoveDecision> DecideMove(const MoveQuestion& q) {
  for (double x : {q.current_step_s, q.new_step_s, q.remaining_steps, q.checkpoint_s, q.reload_s,
                   q.least_share}) {
    if (!std::isfinite(x) || x < 0) {
      return absl::InvalidArgumentError(absl::StrCat(x, " in a question about moving"));
    }
  }
  if (q.current_step_s <= 0 || q.new_step_s <= 0) {
    return absl::InvalidArgumentError("a step that takes no time");
  }
  const double cost_s = q.checkpoint_s + q.reload_s;
  const double share = 1 - q.new_step_s / q.current_step_s;
  MoveDecision decision;
  decision.gain_s = q.remaining_steps * (q.current_step_s - q.new_step_s) - cost_s;
  if (share < q.least_share) {
    decision.reason = absl::StrFormat("a step of %.3f s is less than %.1f %% below %.3f s",
                                      q.new_step_s, 100 * q.least_share, q.current_step_s);
    return decision;
  }
  decision.move = decision.gain_s > 0;
  decision.reason = absl::StrFormat(
      "%.0f steps of %.3f s instead of %.3f s save %.1f s, moving costs %.1f s", q.remaining_steps,
      q.new_step_s, q.current_step_s, decision.gain_s + cost_s, cost_s);
  return decision;
}

}  // namespace lorad::planner
