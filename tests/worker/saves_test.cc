#include "worker/core/saves.h"

#include <catch2/catch.hpp>

namespace lorad::worker {
namespace {

using Numbers = std::vector<int64_t>;

absl::Status Because(absl::StatusCode code, const std::string& reason) {
  absl::Status status(code, "why");
  if (!reason.empty()) status.SetPayload("lorad/reason", absl::Cord(reason));
  return status;
}

TEST_CASE("what a status means for a shard") {
  struct Case {
    absl::StatusCode code;
    Saves::Outcome outcome;
    const char* reason = "";
  };
  const Case cases[] = {
      {absl::StatusCode::kOk, Saves::Outcome::kSaved},
      {absl::StatusCode::kUnavailable, Saves::Outcome::kAgain},
      {absl::StatusCode::kResourceExhausted, Saves::Outcome::kAgain},
      {absl::StatusCode::kDeadlineExceeded, Saves::Outcome::kAgain},
      {absl::StatusCode::kAborted, Saves::Outcome::kAgain},
      {absl::StatusCode::kCancelled, Saves::Outcome::kAgain},
      {absl::StatusCode::kInternal, Saves::Outcome::kAgain},
      {absl::StatusCode::kUnknown, Saves::Outcome::kAgain},
      {absl::StatusCode::kFailedPrecondition, Saves::Outcome::kAgain},
      {absl::StatusCode::kFailedPrecondition, Saves::Outcome::kAgain, "CERTIFICATE_EXPIRED"},
      {absl::StatusCode::kFailedPrecondition, Saves::Outcome::kGivenUp, "STALE_EPOCH"},
      {absl::StatusCode::kFailedPrecondition, Saves::Outcome::kGivenUp, "NOT_A_WORKERS_GROUP"},
      {absl::StatusCode::kInvalidArgument, Saves::Outcome::kGivenUp},
      {absl::StatusCode::kNotFound, Saves::Outcome::kAgain},
      {absl::StatusCode::kDataLoss, Saves::Outcome::kGivenUp},
      {absl::StatusCode::kPermissionDenied, Saves::Outcome::kAgain},
  };
  for (const Case& c : cases) {
    INFO(absl::StatusCodeToString(c.code) << " " << c.reason);
    for (const bool last : {false, true}) {
      Saves saves;
      const int64_t number = saves.Add("a", 3, 10, 0);
      CHECK(saves.Begin(0) == Numbers{number});
      if (last) CHECK_FALSE(saves.LastTry("a"));
      const Saves::Ended ended = saves.End(number, Because(c.code, c.reason), 5);
      const bool again = c.outcome == Saves::Outcome::kAgain;
      CHECK(ended.outcome == (again && last ? Saves::Outcome::kGivenUp : c.outcome));
      CHECK(ended.shard.step == 3);
      CHECK((saves.Find("a") != nullptr) == (again && !last));
    }
  }
}

TEST_CASE("tries begin in the order of staging, each when it is due") {
  Saves saves;
  for (const char* job : {"a", "b", "c", "d", "e"}) saves.Add(job, 1, 10, 0);
  CHECK(saves.Begin(0) == Numbers{1, 2, 3, 4});
  CHECK(saves.NextDue() == std::numeric_limits<double>::infinity());
  saves.End(2, absl::UnavailableError(""), 0);
  CHECK(saves.NextDue() == 0);
  CHECK(saves.Begin(0) == Numbers{5});
  saves.End(1, absl::OkStatus(), 10);
  CHECK(saves.NextDue() == 100);
  CHECK(saves.Begin(99).empty());
  CHECK(saves.Begin(100) == Numbers{2});
}

TEST_CASE("of a shard that is delayed is told what the coordinator does not know itself") {
  for (const char* known : {"", "CHECKPOINT_NOT_WRITTEN", "STEP_NOT_REPORTED"}) {
    Saves saves;
    const int64_t number = saves.Add("a", 3, 10, 0);
    const auto fails_at = [&](double now_ms) {
      saves.Begin(now_ms);
      return saves.End(number, Because(absl::StatusCode::kUnavailable, known), now_ms).tell;
    };
    CHECK_FALSE(fails_at(12'000));  // it has waited for its turn
    CHECK_FALSE(fails_at(21'000));
    CHECK(fails_at(27'000) == std::string(known).empty());
    CHECK_FALSE(fails_at(33'000));
  }
}

TEST_CASE("what is abandoned is waited for only while it is under way") {
  Saves saves;
  saves.Add("a", 1, 10, 0);
  saves.Begin(0);
  saves.Add("b", 1, 10, 0);
  saves.Abandon();
  CHECK(saves.Find("b") == nullptr);
  CHECK(saves.any_under_way());
  CHECK(saves.End(1, absl::OkStatus(), 0).outcome == Saves::Outcome::kAbandoned);
  CHECK_FALSE(saves.any_under_way());
}

TEST_CASE("the first try of a shard ends with its time or its first failure") {
  Saves saves;
  CHECK(saves.FirstTryEnds("a") == 0);
  saves.Add("a", 1, 40960, 7);
  CHECK(saves.FirstTryEnds("a") == 7 + 15'010);
  saves.Begin(7);
  CHECK(saves.FirstTryEnds("a") == 7 + 15'010);
  saves.End(1, absl::UnavailableError(""), 8);
  CHECK(saves.FirstTryEnds("a") == 0);
}

}  // namespace
}  // namespace lorad::worker
