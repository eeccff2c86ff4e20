#include "server/core/cluster/group_table.h"

#include <algorithm>
#include <cassert>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "server/core/cluster/group_records.h"
#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

std::string NameOf(int64_t epoch) { return absl::StrCat("group-", epoch); }

// Says what does not fit in the group by itself; empty: all fits.
std::string WhatIsBroken(const GroupState& group) {
  const bool forming = group.phase == GroupState::Phase::kForming;
  if (forming && group.plan != 0) return "it is being formed and awaits a plan";
  if (forming && group.windows_at_hand() > 0) return "it is being formed and has windows";
  if (!group.members.empty() && group.idle_since_us != 0) return "it has members and is idle";
  if (group.stages.empty()) return "it has no worker";
  for (const StageState& stage : group.stages) {
    int64_t before = 0;
    for (const SentWindow& window : stage.orders.windows) {
      if (window.number <= before) return "its windows are out of order";
      before = window.number;
    }
    if (before >= group.next_window) return "a window of its future is at hand";
  }
  return "";
}

}  // namespace

// ---- groups ----

std::vector<std::string> GroupTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, group] : groups_) names.push_back(name);
  return names;
}

GroupState* GroupTable::Find(const std::string& name) {
  const auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : &found->second;
}

const GroupState* GroupTable::Find(const std::string& name) const {
  const auto found = groups_.find(name);
  return found == groups_.end() ? nullptr : &found->second;
}

GroupState& GroupTable::Form(const std::string& base_model, std::vector<StageState> stages,
                             const planner::GroupShape& shape) {
  const int64_t epoch = next_epoch_++;
  turn_.Put(storage::PutRecord(kMetaKind, kEpochKey, absl::StrCat(epoch)));
  GroupState& group = groups_[NameOf(epoch)];
  group.name = NameOf(epoch);
  group.epoch = epoch;
  group.base_model = base_model;
  group.stages = std::move(stages);
  group.shape = shape;
  group.heard_us = group.ordered_us = turn_.now_us();
  return group;
}

bool GroupTable::TakeUp(GroupState group) {
  if (group.name != NameOf(group.epoch) || group.epoch >= next_epoch_) return false;
  std::set<std::string> workers;
  for (const StageState& stage : group.stages) {
    if (!workers.insert(stage.worker).second) return false;
  }
  for (const auto& [name, other] : groups_) {
    if (name == group.name) return false;
    for (const StageState& stage : other.stages) {
      if (workers.contains(stage.worker)) return false;
    }
    for (const auto& [job, member] : group.members) {
      if (other.members.contains(job)) return false;
    }
  }
  group.heard_us = turn_.now_us();
  if (!WhatIsBroken(group).empty()) return false;
  groups_[group.name] = std::move(group);
  return true;
}

void GroupTable::Store(GroupState& group, std::string record) {
  if (group.stored == record) return;
  turn_.Put(record.empty() ? storage::DeleteRecord(kGroupKind, group.name)
                           : storage::PutRecord(kGroupKind, group.name, record));
  group.stored = std::move(record);
  std::set<std::string> left = std::exchange(group.stored_windows, {});
  if (!group.stored.empty()) {
    for (const StageState& stage : group.stages) {
      for (const SentWindow& window : stage.orders.windows) {
        const std::string key = KeyOfWindow(group, stage, window.number);
        group.stored_windows.insert(key);
        if (left.erase(key) > 0) continue;
        turn_.Put(storage::PutRecord(kWindowKind, key, window.message.SerializeAsString()));
      }
    }
  }
  for (const std::string& key : left) turn_.Put(storage::DeleteRecord(kWindowKind, key));
}

GroupState GroupTable::Remove(const std::string& name) {
  auto node = groups_.extract(name);
  assert(!node.empty());
  Store(node.mapped(), "");
  return std::move(node.mapped());
}

void GroupTable::RenewPatience() {
  for (auto& [name, group] : groups_) {
    group.heard_us = turn_.now_us();
    for (auto& [job, member] : group.members) member.saves_us = turn_.now_us();
  }
}

// ---- members ----

Member& GroupTable::Join(GroupState& group, const std::string& job,
                         const planner::AdapterShape& adapter, int64_t step) {
  Member& member = group.members[job];
  member.adapter = adapter;
  member.joined_step = member.done_step = member.planned_step = step;
  member.save_us = turn_.now_us();
  group.idle_since_us = 0;
  return member;
}

void GroupTable::Leave(GroupState* group, const std::string& job) {
  if (!group) return;
  const auto member = group->members.find(job);
  if (member != group->members.end()) member->second.leaving = true;
}

void GroupTable::Erase(GroupState& group, const std::string& job) {
  group.members.erase(job);
  if (!group.members.empty()) return;
  group.idle_since_us = turn_.now_us();
  group.pace.Clear();  // a pause is no slowness
}

void GroupTable::CountBytes(GroupState& group, const planner::ModelShape& model) {
  int64_t bytes = 0;
  for (const StageState& stage : group.stages) bytes += stage.reserved_bytes;
  for (const auto& [name, member] : group.members) {
    if (member.slot != Member::Slot::kLoaded) continue;
    bytes += planner::BytesOfSlot(model, member.adapter, group.shape.device).total();
  }
  group.counted_bytes = std::max(group.counted_bytes, bytes);
}

bool GroupTable::HasMember(const std::string& job) const {
  return std::ranges::any_of(groups_,
                             [&](const auto& entry) { return entry.second.members.contains(job); });
}

GroupState* GroupTable::FindMember(int64_t epoch, const std::string& job) {
  const auto found = std::ranges::find_if(groups_, [&](const auto& entry) {
    return entry.second.epoch == epoch && entry.second.members.contains(job);
  });
  return found == groups_.end() ? nullptr : &found->second;
}

int32_t GroupTable::OthersIn(const GroupState& group) {
  int32_t others = -1;
  for (const auto& [name, member] : group.members) others += member.leaving ? 0 : 1;
  return std::max(others, 0);
}

std::string GroupTable::WorkersText(const GroupState& group) {
  if (group.stages.size() == 1) return absl::StrCat("worker '", group.first().worker, "'");
  std::vector<std::string> names;
  for (const StageState& stage : group.stages) names.push_back("'" + stage.worker + "'");
  return absl::StrCat("workers ", absl::StrJoin(names, ", "));
}

// ---- plans ----

void GroupTable::PlanWindow(GroupState& group, PlanInput input) {
  if (input.frees.empty() && input.loads.empty() && input.saves.empty() && input.trains.empty() &&
      input.evaluates.empty() && input.generates.empty() && !AnyInFlight(group.left)) {
    return;
  }
  input.epoch = group.epoch;
  input.window = group.next_window;
  input.first_microbatch = group.next_microbatch;
  input.capacity_tokens = static_cast<int32_t>(group.shape.capacity_tokens);
  input.stages = static_cast<int>(group.stages.size());
  input.in_flight = group.shape.in_flight;
  input.before = group.left;
  group.plan = turn_.NewNumber();
  group.plan_frees = input.frees;
  group.plan_order_us = turn_.now_us();
  const bool hurry = group.windows_at_hand() == 0;
  group.plan_needed_us = hurry ? turn_.now_us() : 0;
  turn_.Do(Plan{group.plan, std::move(input), hurry});
}

void GroupTable::HurryPlan(GroupState& group) {
  if (group.plan == 0 || group.plan_needed_us != 0 || group.windows_at_hand() > 0) return;
  group.plan_needed_us = turn_.now_us();
  turn_.Do(Hurry{group.plan});
}

void GroupTable::DropPlan(GroupState& group) {
  if (group.plan == 0) return;
  turn_.Do(Hurry{group.plan});
  group.plan = 0;
}

GroupState* GroupTable::TakePlan(uint64_t number) {
  const auto found =
      std::ranges::find_if(groups_, [&](const auto& entry) { return entry.second.plan == number; });
  if (found == groups_.end()) return nullptr;
  found->second.plan = 0;
  return &found->second;
}

void GroupTable::KeepPlanning(GroupState& group, const PackingReport& packing) const {
  const int64_t needed = group.plan_needed_us == 0 ? turn_.now_us() : group.plan_needed_us;
  group.planning_us += turn_.now_us() - group.plan_order_us;
  group.planning_hidden_us += needed - group.plan_order_us;
  group.bound_microbatches += packing.bound_microbatches;
  for (const std::string& path : packing.paths) group.packings[path]++;
}

// ---- invariants ----

absl::Status GroupTable::CheckInvariants() const {
  std::set<std::string> workers, jobs;
  std::set<uint64_t> plans;
  for (const auto& [name, group] : groups_) {
    const auto broken = [&](const std::string& what) {
      return absl::InternalError(absl::StrCat("groups: ", name, ": ", what));
    };
    if (group.name != name || NameOf(group.epoch) != name) return broken("another name or epoch");
    if (group.epoch >= next_epoch_) return broken("its epoch may be given out again");
    for (const StageState& stage : group.stages) {
      if (!workers.insert(stage.worker).second) return broken("its worker has another stage");
    }
    const bool awaits = group.plan != 0;
    if (awaits && !plans.insert(group.plan).second) return broken("another awaits its plan");
    for (const auto& [job, member] : group.members) {
      if (!jobs.insert(job).second) return broken("job " + job + " is in two groups");
    }
    if (const std::string what = WhatIsBroken(group); !what.empty()) return broken(what);
  }
  return absl::OkStatus();
}

}  // namespace lorad::server
