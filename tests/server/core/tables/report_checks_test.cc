// What a stage may say while its group is breaking: another one has lost its neighbour first.
#include "server/core/cluster/report_checks.h"

#include <catch2/catch.hpp>

#include "server/core/cluster/group_state.h"

namespace lorad::server {
namespace {

GroupState TwoStages(GroupState::Phase phase) {
  GroupState group;
  group.phase = phase;
  group.stages = {StageState{.worker = "w1", .formed = true},
                  StageState{.worker = "w2", .formed = true}};
  return group;
}

TEST_CASE("a stage is Connected once, also where another one was lost meanwhile") {
  worker::v1::Report report;
  report.mutable_connected()->set_connect_seconds(0.1);
  for (const auto phase : {GroupState::Phase::kForming, GroupState::Phase::kBroken}) {
    GroupState group = TwoStages(phase);
    CHECK(WhatIsWrong(report, group, group.last()).empty());
    group.last().connected = true;
    CHECK_FALSE(WhatIsWrong(report, group, group.last()).empty());
    CHECK(WhatIsWrong(report, group, group.first()).empty());
    group.last().formed = false;  // nobody was told to connect
    CHECK_FALSE(WhatIsWrong(report, group, group.first()).empty());
  }
  const GroupState running = TwoStages(GroupState::Phase::kRunning);
  CHECK_FALSE(WhatIsWrong(report, running, running.last()).empty());
}

TEST_CASE("a cut is answered also where a stage was lost meanwhile") {
  worker::v1::CutAnswer answer;
  answer.set_cut(3);
  answer.set_first_not_enqueued(5);
  for (const auto phase : {GroupState::Phase::kCutting, GroupState::Phase::kBroken}) {
    GroupState group = TwoStages(phase);
    group.cut = 3;
    group.next_microbatch = 8;
    CHECK(WhatIsWrong(answer, group).empty());
    group.cut = 4;
    CHECK_FALSE(WhatIsWrong(answer, group).empty());
  }
  GroupState running = TwoStages(GroupState::Phase::kRunning);
  running.cut = 3;
  CHECK_FALSE(WhatIsWrong(answer, running).empty());
}

}  // namespace
}  // namespace lorad::server
