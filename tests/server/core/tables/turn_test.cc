// A turn: time, numbers, and the order of what it hands out.
#include "server/core/events/turn.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

TEST_CASE("what is persisted goes before what is done, however they came") {
  Turn turn;
  turn.Warn("first");
  turn.Put(storage::DeleteRecord("kind", "a"));
  turn.Answer(7, std::monostate());
  turn.Put(storage::DeleteRecord("kind", "b"));
  const std::vector<Effect> effects = turn.End();
  REQUIRE(effects.size() == 3);
  CHECK(std::get<Persist>(effects[0]).mutations ==
        std::vector{storage::DeleteRecord("kind", "a"), storage::DeleteRecord("kind", "b")});
  CHECK(std::get<Note>(effects[1]).message == "first");
  CHECK(std::get<Reply>(effects[2]).request == 7);
  CHECK(turn.End().empty());
}

TEST_CASE("a turn that persists nothing has no Persist") {
  Turn turn;
  turn.Fail(3, absl::NotFoundError("gone"));
  const std::vector<Effect> effects = turn.End();
  REQUIRE(effects.size() == 1);
  CHECK(absl::IsNotFound(std::get<Reply>(effects[0]).status));
}

TEST_CASE("time never goes back, and ages are not told by the wall's clock") {
  Turn turn;
  turn.Start({1000, 5000}, 4);
  CHECK(turn.starts() == 5);
  turn.Begin({1300, 90'000});
  turn.Begin({1200, 70});
  CHECK(turn.now_us() == 1300);
  CHECK(turn.wall_us() == 70);
  CHECK(turn.run_us() == 300);
  CHECK(turn.SteadyWallUs() == 5300);
}

TEST_CASE("a number is given out once") {
  Turn turn;
  CHECK(turn.NewNumber() == 1);
  turn.End();
  CHECK(turn.NewNumber() == 2);
}

TEST_CASE("what an event leaves behind is told") {
  Turn turn;
  CHECK(turn.CheckInvariants().ok());
  turn.WantSchedule();
  CHECK_FALSE(turn.CheckInvariants().ok());
  CHECK(turn.TakeScheduleWanted());
  CHECK_FALSE(turn.schedule_wanted());
  CHECK(turn.CheckInvariants().ok());
  turn.Put(storage::DeleteRecord("kind", "a"));
  CHECK_FALSE(turn.CheckInvariants().ok());
  turn.End();
  CHECK(turn.CheckInvariants().ok());
}

}  // namespace
}  // namespace lorad::server
