#include "planner/schedule/regrow.h"

#include <algorithm>
#include <optional>

#include "absl/strings/str_format.h"
#include "planner/cost/move.h"
#include "planner/schedule/schedule.h"
#include "planner/schedule/shapes.h"

namespace lorad::planner {
namespace {

bool MayRegrow(Round& round, const GroupState& group) {
  // How long several stages take is not learned.
  return group.settled() && group.stages.empty() && !group.touched && group.joined.empty() &&
         group.jobs > 0 && !group.alone && group.formed_s >= round.view.policy.minimum_run_s &&
         IsKnown(group) &&
         std::ranges::all_of(group.members,
                             [](const MemberState& member) {
                               return member.trains && !member.running->coming &&
                                      !member.running->stays;
                             }) &&
         round.Ahead(group) == nullptr;
}

std::optional<Regrowth> RegrowthOf(Round& round, size_t index) {
  const GroupState& group = round.groups[index];
  const auto shape = ShapeFormedAgain(round.sizes, group, std::nullopt);
  const bool better = shape && (shape->capacity_tokens > group.shape.capacity_tokens ||
                                shape->recomputation < group.shape.recomputation);
  if (!better) return std::nullopt;
  const auto jobs = static_cast<double>(group.crew.size());
  MoveQuestion question;
  question.current_step_s = group.SumOfEnds();
  question.new_step_s = group.crew.SumOfEnds(group.pace.times, shape->capacity_tokens) *
                        RecomputationFactor(shape->recomputation) /
                        RecomputationFactor(group.shape.recomputation);
  question.remaining_steps = 1;
  question.checkpoint_s = jobs * round.view.move_s;
  question.reload_s = jobs * group.pace.load_s;
  question.least_share = round.view.policy.least_share;
  const auto decision = DecideMove(question);
  if (!decision.ok() || !decision->move) return std::nullopt;
  return Regrowth{index, *shape,
                  absl::StrFormat("its jobs end %.1f s earlier in the sum, %.1f s it costs them",
                                  question.current_step_s - question.new_step_s,
                                  question.checkpoint_s + question.reload_s)};
}

}  // namespace

double RecomputationFactor(Recomputation recomputation) {
  switch (recomputation) {
    case Recomputation::kNothing:
      return 1;
    case Recomputation::kProducts:
      return 1.025;
    case Recomputation::kBlocks:
      break;
  }
  return 4.0 / 3;
}

std::vector<Regrowth> Regrow(Round& round, const std::vector<bool>& touched) {
  std::vector<Regrowth> regrowths;
  if (!round.view.policy.rebalance) return regrowths;
  for (size_t g = 0; g < round.view.groups.size(); ++g) {
    if (touched[g] || !MayRegrow(round, round.groups[g])) continue;
    if (auto regrowth = RegrowthOf(round, g)) regrowths.push_back(*std::move(regrowth));
  }
  return regrowths;
}

}  // namespace lorad::planner
