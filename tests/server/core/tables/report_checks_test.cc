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

worker::v1::Window AsksFor(int64_t number) {
  worker::v1::Window window;
  window.set_number(1);
  for (const int64_t microbatch : {4, 5}) {
    worker::v1::Microbatch& one = *window.add_microbatches();
    one.set_number(microbatch);
    worker::v1::Segment& segment = *one.add_segments();
    segment.set_mode(worker::v1::Segment::GENERATE);
    segment.mutable_sampling()->set_generation("g/" + std::to_string(microbatch));
    segment.mutable_sampling()->set_number(number);
  }
  return window;
}

worker::v1::Report Generated(const std::string& generation, int64_t number, int32_t token) {
  worker::v1::Report report;
  report.mutable_generated()->set_generation(generation);
  report.mutable_generated()->set_number(number);
  report.mutable_generated()->set_token(token);
  report.mutable_generated()->set_log_probability(-1);
  return report;
}

TEST_CASE("a token is told once, where it was asked for, by the stage that has the head") {
  GroupState group = TwoStages(GroupState::Phase::kRunning);
  group.vocabulary_size = 16;
  OpenBatches batches;
  const worker::v1::Window window = AsksFor(7);
  AddWindow(window, StageWindows{{window, window}, {}, 6}, {}, nullptr, group.first().orders);
  AddWindow(window, StageWindows{{window, window}, {}, 6}, {}, &batches, group.last().orders);
  const auto fits = [&](const worker::v1::Report& report, const StageState& stage) {
    return WhatIsWrong(report, group, stage).empty();
  };
  CHECK(fits(Generated("g/4", 7, 15), group.last()));
  CHECK(fits(Generated("g/4", 7, -1), group.last()));
  CHECK_FALSE(fits(Generated("g/4", 7, 15), group.first()));
  CHECK_FALSE(fits(Generated("g/4", 8, 15), group.last()));
  CHECK_FALSE(fits(Generated("g/6", 7, 15), group.last()));
  CHECK_FALSE(fits(Generated("g/4", 7, 16), group.last()));
  CHECK_FALSE(fits(Generated("g/4", 7, -2), group.last()));
  worker::v1::Report sure = Generated("g/4", 7, 1);
  sure.mutable_generated()->set_log_probability(0.5);
  CHECK_FALSE(fits(sure, group.last()));

  worker::v1::Report done;
  done.mutable_window_done()->set_window(1);
  CHECK(fits(done, group.first()));
  CHECK_FALSE(fits(done, group.last()));
  TakeToken(group.last().orders, {"g/4", 7});
  CHECK_FALSE(fits(Generated("g/4", 7, 15), group.last()));
  CHECK_FALSE(fits(done, group.last()));
  GiveUpFrom(group.last().orders, 5);  // a cut drops the other one
  CHECK(fits(done, group.last()));
  CHECK_FALSE(fits(Generated("g/5", 7, 1), group.last()));
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
