// Groups by themselves: epochs, members and plans, and what the table says of its own state.
#include "server/core/cluster/group_table.h"

#include <catch2/catch.hpp>

#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

struct Fixture {
  Turn turn;
  GroupTable groups{turn};

  Fixture() {
    turn.Begin({1'000'000, 0});
    groups.Load(6);
  }
  GroupState& Form(const std::string& worker) {
    return groups.Form("m", {StageState{.worker = worker}}, {});
  }
};

TEST_CASE("an epoch is stored, and used once") {
  Fixture house;
  CHECK(house.Form("w1").name == "group-7");
  const auto effects = house.turn.End();
  REQUIRE(effects.size() == 1);
  CHECK(std::get<Persist>(effects[0]).mutations ==
        std::vector{storage::PutRecord(kMetaKind, kEpochKey, "7")});
  CHECK(house.groups.Remove("group-7").epoch == 7);
  CHECK(house.groups.empty());
  CHECK(house.Form("w1").epoch == 8);
  CHECK(house.groups.names() == std::vector<std::string>{"group-8"});
  CHECK(house.groups.CheckInvariants().ok());
}

TEST_CASE("members are found by their group's epoch, and the last that goes leaves it idle") {
  Fixture house;
  GroupState& group = house.Form("w1");
  house.groups.Join(group, "a", {}, 5);
  house.groups.Join(group, "b", {}, 0);
  CHECK(group.members.at("a").planned_step == 5);
  CHECK(house.groups.FindMember(7, "a") == &group);
  CHECK_FALSE(house.groups.FindMember(6, "a"));
  CHECK_FALSE(house.groups.FindMember(7, "c"));
  CHECK(GroupTable::OthersIn(group) == 1);
  GroupTable::Leave(&group, "b");
  CHECK(GroupTable::OthersIn(group) == 0);
  CHECK(house.groups.HasMember("b"));
  house.groups.Erase(group, "b");
  CHECK(group.idle_since_us == 0);
  for (int i = 0; i < 10; ++i) group.pace.Add(i * 1'000'000, 5);
  CHECK(group.pace.IsKnown());
  house.groups.Erase(group, "a");
  CHECK(group.idle_since_us == 1'000'000);
  CHECK_FALSE(group.pace.IsKnown());  // what comes after the pause is not slow by it
  CHECK_FALSE(house.groups.HasMember("a"));
  CHECK(house.groups.CheckInvariants().ok());
}

TEST_CASE("a plan is taken by the group that awaits it, unless it was dropped") {
  Fixture house;
  GroupState& group = house.Form("w1");
  group.phase = GroupState::Phase::kRunning;
  house.turn.End();
  house.groups.PlanWindow(group, {});
  CHECK(house.turn.End().empty());  // there is nothing to do
  PlanInput input;
  input.frees = {"a"};
  house.groups.PlanWindow(group, input);
  const auto effects = house.turn.End();
  REQUIRE(effects.size() == 1);
  const Plan& plan = std::get<Plan>(effects[0]);
  CHECK(plan.hurry);
  CHECK(plan.input.epoch == 7);
  CHECK(plan.input.window == 1);
  CHECK(house.groups.CheckInvariants().ok());
  CHECK_FALSE(house.groups.TakePlan(plan.number + 1));
  CHECK(house.groups.TakePlan(plan.number) == &group);
  CHECK_FALSE(house.groups.TakePlan(plan.number));

  house.groups.PlanWindow(group, input);
  house.groups.DropPlan(group);
  CHECK(std::holds_alternative<Hurry>(house.turn.End().back()));
  CHECK_FALSE(house.groups.TakePlan(plan.number + 1));
}

TEST_CASE("groups that share what they must not are noticed") {
  Fixture house;
  GroupState& first = house.Form("w1");
  GroupState& second = house.Form("w2");
  house.groups.Join(first, "a", {}, 0);
  REQUIRE(house.groups.CheckInvariants().ok());
  SECTION("a worker") { second.first().worker = "w1"; }
  SECTION("a job") { house.groups.Join(second, "a", {}, 0); }
  SECTION("a plan") {
    first.phase = second.phase = GroupState::Phase::kRunning;
    first.plan = second.plan = 3;
  }
  SECTION("an epoch") { second.epoch = first.epoch; }
  CHECK_FALSE(house.groups.CheckInvariants().ok());
}

TEST_CASE("a group that cannot be as it is, is noticed") {
  Fixture house;
  GroupState& group = house.Form("w1");
  house.groups.Join(group, "a", {}, 0);
  REQUIRE(house.groups.CheckInvariants().ok());
  SECTION("formed before it is formed") { group.plan = 1; }
  SECTION("idle beside its members") { group.idle_since_us = 1; }
  SECTION("an epoch that will come again") { house.groups.Load(6); }
  SECTION("windows out of order") {
    group.phase = GroupState::Phase::kRunning;
    group.next_window = 3;
    auto& windows = group.first().orders.windows;
    windows.resize(2);
    windows[0].number = 2;
    windows[1].number = 1;
  }
  CHECK_FALSE(house.groups.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
