// Histories whose ends can be followed by hand; the policy is asked at once.
#include "planner/replay/replay.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <vector>

#include "planner/replay/baselines.h"
#include "tests/planner/replay/fixtures.h"

namespace lorad::planner {
namespace {

constexpr Turns kAtOnce{.turn_s = 0, .look_s = 60};

Outcome Play(const History& history, const Decide& decide = Schedule) {
  return Replay(history, {}, decide, kAtOnce);
}

void CheckEnds(const Outcome& outcome, const std::vector<double>& ends_s) {
  REQUIRE(outcome.jobs.size() == ends_s.size());
  for (size_t j = 0; j < ends_s.size(); ++j) {
    INFO("job " << j);
    CHECK(outcome.jobs[j].ends_s == Approx(ends_s[j]));
  }
}

TEST_CASE("A job alone waits for the load and takes its steps") {
  const Outcome outcome = Play(Of({There("w")}, {Comes("a", 7, 10)}, 5));
  CheckEnds(outcome, {7 + 5 + 10 * 0.3});
  CHECK(outcome.jobs[0].waited_s == 0);
  CHECK(outcome.training_s == Approx(3));
  REQUIRE(outcome.stays.size() == 1);
  CHECK(outcome.stays[0].steps == Approx(10));
  CHECK(outcome.stays[0].from_s == 7);
  const Summary summary = Summarize(Of({There("w")}, {Comes("a", 7, 10)}), outcome);
  CHECK(summary.makespan_s == Approx(8));
  CHECK(summary.mean_completion_s == Approx(8));
  CHECK(summary.idle_share == Approx(5.0 / 8));
  CHECK(summary.tokens_per_s == Approx(250));
  CHECK(summary.tokens_per_training_s == Approx(2000.0 / 3));
}

TEST_CASE("Jobs of a group share its rounds, which change as they come and end") {
  // 400 tokens a round: 500 ms. b goes on alone from 5 s on.
  CheckEnds(Play(Of({There("w")}, {Comes("a", 0, 10), Comes("b", 0, 20)})), {5, 8});
  // b comes when a has taken 5 steps.
  CheckEnds(Play(Of({There("w")}, {Comes("a", 0, 10), Comes("b", 1.5, 10)})), {4, 5.5});
  // Steps beyond a microbatch of 1,024 tokens pay its constant part in proportion.
  CheckEnds(Play(Of({There("w")}, {Comes("a", 0, 10, 1536)})), {10 * (0.15 + 1.536)});
}

TEST_CASE("Steps take longer where more is computed again than usual") {
  const HistoryJob job = Comes("a", 0, 10);
  HistoryWorker worker = There("w");
  const int64_t bytes =
      BlocksAgain(1024, 100) + BytesOfSlot(SmolLm2(), *job.content.adapter).total();
  worker.view.budget_bytes = bytes + bytes * 2 / 100 + 1;
  CheckEnds(Play(Of({worker}, {job})), {10 * 0.3 * (4.0 / 3) / 1.025});
}

TEST_CASE("Rounds take longer on a worker that is slower than its kind") {
  HistoryWorker slow = There("v");
  slow.view.slowness = 2;
  CheckEnds(Play(Of({slow}, {Comes("a", 0, 10)})), {10 * 0.6});
  CheckEnds(Play(Of({slow, There("w")}, {Comes("a", 0, 10)})), {10 * 0.3});
}

TEST_CASE("A job of higher priority takes the place of one that is saved meanwhile") {
  const History history =
      Of({WithRoomFor(There("w"), 1)}, {Comes("a", 0, 100), Urgent(Comes("b", 10, 10), 5)});
  const Outcome outcome = Play(history);
  // a leaves at 10 and its slot at 12; b trains for 3 s, then a goes on with what it had left.
  CheckEnds(outcome, {15 + 20, 15});
  CHECK(outcome.evictions == 1);
  CHECK(outcome.moves == 0);
  CHECK(outcome.jobs[0].waited_s == Approx(3));
  CHECK(outcome.jobs[1].waited_s == Approx(2));
  CHECK(Summarize(history, outcome).worst_wait_s == Approx(3));
}

TEST_CASE("Equals take turns, however long each has waited") {
  const History history = Of(
      {WithRoomFor(There("w"), 1)},
      {Comes("a", 0, 40'000), Comes("b", 1, 40'000), Comes("c", 2, 40'000), Comes("d", 3, 40'000)});
  SchedulePolicy policy;
  policy.minimum_run_s = 600;
  policy.points_per_hour = 6;
  policy.points_max = 1;  // after 10 minutes all have as many
  const Outcome outcome = Replay(history, policy, Schedule, kAtOnce);
  std::vector<double> first_s(4, kNever);
  for (const Stay& stay : outcome.stays) {
    first_s[stay.job] = std::min(first_s[stay.job], stay.from_s);
  }
  for (const double start_s : first_s) CHECK(start_s < 4 * 700);
  CHECK(outcome.evictions > 40);
}

TEST_CASE("A worker that goes takes along what was not saved") {
  History history = Of({There("w", 0, 10), There("v", 20)}, {Comes("a", 0, 100)});
  history.jobs[0].checkpoint_steps = 10;
  const Outcome outcome = Play(history);
  CheckEnds(outcome, {20 + 70 * 0.3});
  REQUIRE(outcome.stays.size() == 2);
  CHECK(outcome.stays[0].steps == Approx(100.0 / 3));
  CHECK(outcome.stays[0].lost == Approx(10.0 / 3));
  CHECK(outcome.jobs[0].waited_s == Approx(10));
  // Without checkpoints all is lost.
  history.jobs[0].checkpoint_steps = 0;
  CheckEnds(Play(history), {20 + 100 * 0.3});
}

TEST_CASE("A worker that comes late has its share") {
  const Outcome outcome =
      Play(Of({There("w"), There("v", 10)}, {Comes("a", 0, 1000), Comes("b", 0, 1000)}));
  CHECK(outcome.moves == 1);
  // One goes on alone, the other is under way for 2 s.
  const double first = 10 + 980 * 0.3;
  const bool b_moves = outcome.jobs[0].ends_s < outcome.jobs[1].ends_s;
  CheckEnds(outcome, {first + (b_moves ? 0 : 2), first + (b_moves ? 2 : 0)});
}

TEST_CASE("A group without jobs makes room at once, or when its time is over") {
  const History history = Of({There("w")}, {Comes("a", 0, 10), Comes("b", 10, 10, 200, "n")}, 1);
  CheckEnds(Play(history), {4, 14});
  History later = Of({There("w")}, {Comes("a", 0, 10), Comes("b", 10, 10)}, 1);
  CheckEnds(Play(later), {4, 13});  // the group is there still
  later.empty_group_s = 5;
  CheckEnds(Play(later), {4, 14});
  CHECK(Play(later).groups == 2);
}

TEST_CASE("Who fits no worker never ends, and holds up nobody") {
  History history = Of({WithRoomFor(There("w"), 1)}, {Comes("a", 0, 10), Comes("b", 0, 10)});
  history.jobs[0].content.longest_sequence = 100'000;
  const Outcome outcome = Play(history);
  CHECK(outcome.jobs[0].ends_s == kNever);
  CHECK(outcome.jobs[1].ends_s == Approx(3));
  CHECK(Summarize(history, outcome).ended == 1);
}

TEST_CASE("Short jobs of two base models that come by turns share turns") {
  const auto by_turns = [](int64_t steps, int64_t tokens) {
    std::vector<HistoryJob> jobs;
    for (int i = 0; i < 12; ++i) {
      jobs.push_back(Comes("j" + std::to_string(i), 0, steps, tokens, i % 2 == 0 ? "m" : "n"));
    }
    return Of({There("w")}, std::move(jobs), 10);
  };
  // Rounds of six jobs of 200 tokens last 100 ms x 1200 / 1024 + 1.2 s; a model is loaded in 10 s.
  const Outcome packed = Play(by_turns(8, 200));
  const double turn_s = 10 + 8 * (0.1 * 1200 / 1024 + 1.2);
  for (size_t j = 0; j < 12; ++j) {
    CHECK(packed.jobs[j].ends_s == Approx(j % 2 == 0 ? turn_s : 2 * turn_s));
  }
  CHECK(packed.groups == 2);
  // Each of these makes a turn longer by as much as its own would last.
  const Outcome in_order = Play(by_turns(100, 2048));
  for (size_t j = 0; j < 12; ++j) {
    const double long_turn_s = 10 + 100 * (0.2 + 2.048);
    CHECK(in_order.jobs[j].ends_s == Approx(static_cast<double>(j + 1) * long_turn_s));
  }
}

TEST_CASE("First come first served: each job alone, in order") {
  const History history =
      Of({There("w")}, {Comes("a", 0, 10), Comes("b", 0, 20), Urgent(Comes("c", 1, 10), 5)}, 1);
  const Outcome outcome = Play(history, FirstComeFirstServed);
  CheckEnds(outcome, {4, 4 + 1 + 6, 11 + 1 + 3});
  CHECK(outcome.jobs[1].waited_s == Approx(4));
  CHECK(outcome.jobs[2].waited_s == Approx(10));
  CHECK(outcome.groups == 3);
  CHECK(outcome.evictions == 0);
  // One that fits no worker that there is holds up those behind it.
  History large =
      Of({WithRoomFor(There("w"), 1), There("v", 100)}, {Comes("a", 0, 10), Comes("b", 1, 10)});
  large.jobs[0].content.longest_sequence = 6000;
  CheckEnds(Play(large, FirstComeFirstServed), {100 + 3, 100 + 3});
}

TEST_CASE("One group a base model, whatever else is idle") {
  const History history = Of({There("u"), There("v"), There("w")},
                             {Comes("a", 0, 10), Comes("b", 0, 10), Comes("c", 0, 10, 200, "n")});
  const Outcome outcome = Play(history, GangByGang);
  CheckEnds(outcome, {5, 5, 3});
  CHECK(outcome.groups == 2);
  // With one worker the other base model waits until the group has no jobs.
  const History one =
      Of({There("u")}, {Comes("a", 0, 10), Comes("c", 0, 10, 200, "n"), Comes("b", 1.5, 10)});
  CheckEnds(Play(one, GangByGang), {4, 5.5 + 3, 5.5});
}

TEST_CASE("Turns: the policy is asked at their multiples") {
  const History history = Of({There("w")}, {Comes("a", 0.5, 10)});
  const Outcome outcome = Replay(history, {}, Schedule, {.turn_s = 2, .look_s = 60});
  CHECK(outcome.jobs[0].ends_s == Approx(5));
  CHECK(outcome.jobs[0].waited_s == Approx(1.5));
}

TEST_CASE("Years take hardly more looks than days, and what ripens within a day is not late") {
  // The first leaves a gap of 60 years, the second trains for as long; the third has its point in an
  // hour, and with it the place of the second.
  History history =
      Of({WithRoomFor(There("w"), 1)},
         {Comes("a", 0, 10), Comes("b", 2e9, 6'000'000'000), Comes("c", 2e9 + 7, 10)});
  const Outcome outcome = Play(history);
  CHECK(outcome.jobs[0].ends_s == Approx(3));
  CHECK(outcome.jobs[1].ends_s - 3.8e9 == Approx(3 + 2));
  CHECK(outcome.jobs[2].ends_s - 2e9 == Approx(7 + 3600 + 2 + 3));
  CHECK(outcome.turns < 30'000);
}

TEST_CASE("What was recorded is summed up as it went") {
  History history = Of({There("w")}, {Comes("a", 0, 10), Comes("b", 5, 10), Comes("c", 6, 10)});
  history.jobs[0].started_s = 1;
  history.jobs[0].ended_s = 10;
  history.jobs[1].started_s = 10;
  history.jobs[1].ended_s = 20;
  const Summary summary = SummarizeRecord(history);
  CHECK(summary.ended == 2);
  CHECK(summary.makespan_s == 20);
  CHECK(summary.mean_completion_s == 12.5);
  CHECK(summary.mean_wait_s == 3);
  CHECK(summary.worst_wait_s == 5);
}

}  // namespace
}  // namespace lorad::planner
