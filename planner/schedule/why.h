// Why a job waits, for the user who asks. Within the planner only.
#pragma once

#include <string>

#include "planner/schedule/state.h"

namespace lorad::planner {

// A group that makes room for the job, or is being formed or changed and would fit it alone: until
// it is known what becomes of it, no other is changed for the job.
const GroupState* Awaited(Round& round, const Waiter& job);

// The group that is cut as others are evicted for it: nobody is evicted elsewhere meanwhile.
const GroupState* MakesRoomFor(const Round& round, const Waiter& job);

// A group of its base model that takes newcomers, but not this one, for suspicion alone.
const GroupState* PartedFrom(Round& round, const Waiter& job);

// "group g", "the group being formed"; a name that says what it is stands for itself: "group-2".
std::string NameOf(const GroupState& group);

// "group g makes room for it".
std::string MakingRoom(const GroupState& group);

// REQUIRES: `job` is among round.waiting.
std::string WhyWait(Round& round, const Waiter& job);

}  // namespace lorad::planner
