// Who may overtake jobs that wait (docs/planner.md, "Turns").
//
// Who waits keeps everyone behind it out of the groups that it waits for (Round::Ahead). Were that
// all, jobs of two base models that come by turns would train one at a time. So a group that had no
// jobs takes in, in the same moment as its first ones, those of its base model that are behind jobs
// of others: in their order, up to the first that may not come.
#include "planner/schedule/state.h"

namespace lorad::planner {
namespace {

// By such a share a turn may last longer for those who overtake.
constexpr double kLonger = 0.1;

}  // namespace

bool Round::KeepsOut(const GroupState& group, const Waiter& job, const GroupShape& shape) {
  const Waiter* const ahead = Ahead(group);
  if (ahead == nullptr) return false;
  const bool begins = group.members.empty() && group.jobs > 0 && group.kept_for == nullptr;
  return !begins || Ahead(group, true, group.not_ahead_of_own) != nullptr ||
         !MayOvertake(group, job, shape, *ahead, view.move_s);
}

bool MayOvertake(const GroupState& group, const Waiter& job, const GroupShape& shape,
                 const Waiter& ahead, double move_s) {
  // Who is behind `ahead`, and before the job, is no more important than it: they stand in order.
  const bool goes_first =
      ahead.job->resumes || ahead.job->first_of_equals || ahead.job->priority > job.job->priority;
  // Where times have no seconds, nobody knows how long others would wait.
  if (goes_first || !group.pace.known) return false;
  const auto last_end_s = [&](const GroupShape& of_shape, const JobWork* comes) {
    return group.crew.LastEnd(group.pace.times, of_shape.capacity_tokens, comes);
  };
  if (!group.due_s) group.due_s = last_end_s(group.shape, nullptr);
  return last_end_s(shape, &job.work) <= (1 + kLonger) * *group.due_s + group.pace.load_s + move_s;
}

}  // namespace lorad::planner
