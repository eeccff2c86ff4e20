// Groups by name: their members, the plans that they wait for, and the epochs under which they are
// formed.
//
// Invariants: a group is found by its name, which is made of its epoch; an epoch is used once, also
// over starts, and is stored before the group is announced; a worker has one stage, and a job is in
// one group, at most; a group that is being formed has neither plan nor windows; windows at hand
// are numbered in their order; a plan is awaited by one group.
//
// It knows the Turn, and jobs and workers by name alone: what becomes of them is for Core::State.
// Threads: the core's one. Errors: none; what REQUIRES to be there and is not is our own bug.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/core/cluster/group_state.h"
#include "server/core/events/turn.h"

namespace lorad::server {

class GroupTable {
 public:
  explicit GroupTable(Turn& turn) : turn_(turn) {}
  // `last_epoch`: the newest that was stored.
  void Load(int64_t last_epoch) { next_epoch_ = last_epoch + 1; }

  // ---- groups ----
  const std::map<std::string, GroupState>& all() const { return groups_; }
  bool empty() const { return groups_.empty(); }
  std::vector<std::string> names() const;
  // Null where there is none.
  GroupState* Find(const std::string& name);
  const GroupState* Find(const std::string& name) const;
  // A new one, in phase kForming and under an epoch of its own; `stages`: of each the worker, and
  // of several the range.
  GroupState& Form(const std::string& base_model, std::vector<StageState> stages,
                   const planner::GroupShape& shape);
  // One of before this start (group_records.h). False: its name or its epoch is none, or taken, or
  // one of its workers or jobs is in another group.
  bool TakeUp(GroupState group);
  // Puts the group's record, and those of its windows at hand (group_records.h), where they are not
  // what they were. Empty: it has none.
  void Store(GroupState& group, std::string record);
  // Hands the group out; it is in the table no more, nor are its records. REQUIRES: it is there.
  GroupState Remove(const std::string& name);
  // Their workers' time starts over.
  void RenewPatience();

  // ---- members ----
  // The job becomes a member with an unloaded slot, after so many steps.
  Member& Join(GroupState& group, const std::string& job, const planner::AdapterShape& adapter,
               int64_t step);
  // The job gets no more units where it is a member. A null group has none.
  static void Leave(GroupState* group, const std::string& job);
  // It is a member no more.
  void Erase(GroupState& group, const std::string& job);
  // Raises counted_bytes to what the group has now: the bytes that its workers reported, and the
  // planner's for each loaded slot. What the engine counts is another sum (docs/engine.md).
  static void CountBytes(GroupState& group, const planner::ModelShape& model);
  bool HasMember(const std::string& job) const;
  // Null where no group of that epoch has the job.
  GroupState* FindMember(int64_t epoch, const std::string& job);
  // How many stay in the group, but for one.
  static int32_t OthersIn(const GroupState& group);
  // "worker 'a'", or "workers 'a', 'b'" in the order of its stages.
  static std::string WorkersText(const GroupState& group);

  // ---- plans ----
  // Asks for the plan of the group's next window, where there is anything to do in it, or in
  // flight. REQUIRES: it awaits none.
  void PlanWindow(GroupState& group, PlanInput input);
  // The group's worker has run out of windows: a plan that is awaited is to end soon.
  void HurryPlan(GroupState& group);
  // The plan that the group awaits, if any, comes too late.
  void DropPlan(GroupState& group);
  // The group that awaited the plan, which it does no more; null: nobody does.
  GroupState* TakePlan(uint64_t number);
  void KeepPlanning(GroupState& group, const PackingReport& packing) const;

  // OK where the invariants hold, else INTERNAL and which does not.
  absl::Status CheckInvariants() const;

 private:
  Turn& turn_;
  std::map<std::string, GroupState> groups_;  // by name
  int64_t next_epoch_ = 1;
};

}  // namespace lorad::server
