// Whether a new deployment is worth moving to (LobRA 5.1: checkpoint the adapters, restart on the
// new layouts; the base model is only loaded). With n steps to go before the jobs change again:
//   gain = n (t_current - t_new) - cost of moving,   adopted if it is above 0
// and if t_new is by a least share below t_current, so that the model's noise does not move jobs.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace lorad::planner {

struct MoveQuestion {
  double current_step_s = 0;  // > 0
  double new_step_s = 0;      // > 0
  double remaining_steps = 0;
  double checkpoint_s = 0;
  double reload_s = 0;
  double least_share = 0.02;  // of the current step's time; about the time model's error
};

struct MoveDecision {
  bool move = false;
  double gain_s = 0;  // over the remaining steps, the cost of moving taken off
  std::string reason;

  std::string ToText() const;  // "move: 1200.0 s sooner; ..." or "stay: ..."
};

// InvalidArgument for numbers that are negative or not finite.
absl::StatusOr<MoveDecision> DecideMove(const MoveQuestion& question);

}  // namespace lorad::planner
