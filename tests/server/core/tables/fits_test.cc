// What was learned of workers, alone.
#include "server/core/cluster/fits.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "server/core/events/store_kinds.h"

namespace lorad::server {
namespace {

// The records that Put has left.
std::vector<std::pair<std::string, std::string>> Stored(Turn& turn) {
  std::vector<std::pair<std::string, std::string>> stored;
  for (const Effect& effect : turn.End()) {
    const auto* persist = std::get_if<Persist>(&effect);
    if (!persist) continue;
    for (const storage::Mutation& mutation : persist->mutations) {
      if (mutation.kind == kFitKind) stored.emplace_back(mutation.key, mutation.value);
    }
  }
  return stored;
}

WorkerState Device(const std::string& name, const std::string& numerics_id = "n") {
  WorkerState worker;
  worker.hello.set_device_name(name);
  worker.hello.set_numerics_id(numerics_id);
  return worker;
}

// Forward 1 ms and 0.01 ms a token, backward twice that.
void Learn(Fits& fits, const WorkerState& worker, int64_t capacity, double factor = 1) {
  for (int64_t tokens = 100; tokens <= capacity; tokens += 100) {
    const double ms = factor * (1 + 0.01 * static_cast<double>(tokens));
    fits.Observe("m", {}, worker, capacity,
                 {.work = static_cast<double>(tokens), .forward_ms = ms, .backward_ms = 2 * ms});
  }
}

TEST_CASE("times are known by device, numerics id and length, and the nearest length helps out") {
  Turn turn;
  Fits fits(turn);
  const WorkerState fast = Device("fast"), slow = Device("slow"), other = Device("fast", "o");
  Learn(fits, fast, 1000);
  Learn(fits, fast, 8000, 0.5);
  CHECK(fits.TimesOf("m", {}, &fast, 1000).TrainMs(1000, 1) == Approx(33).epsilon(0.01));
  CHECK(fits.TimesOf("m", {}, &fast, 8000).TrainMs(1000, 1) == Approx(16.5).epsilon(0.01));
  CHECK(&fits.TimesOf("m", {}, &fast, 2000) == &fits.TimesOf("m", {}, &fast, 1000));
  CHECK(&fits.TimesOf("m", {}, &fast, 7000) == &fits.TimesOf("m", {}, &fast, 8000));
  CHECK_FALSE(fits.TimesOf("m", {}, &slow, 1000).is_measured());
  CHECK_FALSE(fits.TimesOf("m", {}, &other, 1000).is_measured());
  CHECK_FALSE(fits.TimesOf("m2", {}, &fast, 1000).is_measured());
}

TEST_CASE("how long groups take to form survives a start, and goes with the base model") {
  const WorkerState fast = Device("fast"), slow = Device("slow");
  Turn turn;
  Fits fits(turn);
  fits.ObserveLoad("m", fast, 3.5);
  fits.ObserveLoad("m", slow, 70);
  fits.Put();
  const auto stored = Stored(turn);
  CHECK(stored.size() == 2);
  Fits again(turn);
  REQUIRE(again.Load(stored).ok());
  CHECK(again.LoadSeconds("m", {}, fast) == 3.5);
  CHECK(again.LoadSeconds("m", {}, slow) == 70);
  again.Put();
  CHECK(Stored(turn).empty());  // nothing has changed
  again.Forget("m");
  CHECK(Stored(turn).size() == 2);  // both are deleted
}

TEST_CASE("they survive a start, to the bit") {
  const WorkerState worker = Device("fast");
  Turn turn;
  Fits fits(turn);
  Learn(fits, worker, 1000);
  for (int64_t i = 1; i < 9; ++i) {
    fits.Observe("m", worker,
                 planner::MemoryFit::Peak{.counted_bytes = 1000 * i,
                                          .tokens = 10 * i,
                                          .squared_lengths = i,
                                          .peak_bytes = 1100 * i + 7});
  }
  fits.Put();
  const auto stored = Stored(turn);
  REQUIRE(stored.size() == 2);
  fits.Put();
  CHECK(Stored(turn).empty());  // nothing has changed since

  Turn next;
  Fits again(next);
  REQUIRE(again.Load(stored).ok());
  CHECK(again.TimesOf("m", {}, &worker, 1000).ToText() ==
        fits.TimesOf("m", {}, &worker, 1000).ToText());
  CHECK(again.TimesOf("m", {}, &worker, 9000).is_measured());
  CHECK(again.MemoryOf("m", worker)->sums() == fits.MemoryOf("m", worker)->sums());
  CHECK_FALSE(again.MemoryOf("m", Device("slow")));
  again.Forget("m");
  const auto gone = Stored(next);
  for (const auto& [key, value] : stored) {
    CHECK(std::ranges::count(gone, std::pair(key, std::string())) == 1);
  }
  CHECK_FALSE(again.MemoryOf("m", worker));
  CHECK_FALSE(again.TimesOf("m", {}, &worker, 1000).is_measured());
}

TEST_CASE("a record that is not ours is refused, one of other sums is learned again") {
  Turn turn;
  Fits fits(turn);
  CHECK(absl::IsDataLoss(fits.Load({{"time/m/1/d", "\xff"}})));
  const WorkerState worker = Device("fast");
  records::FitRecord record;
  record.set_base_model("m");
  record.set_device(DeviceKeyOf(&worker));
  record.set_capacity_tokens(1000);
  for (const std::vector<double>& forward :
       {std::vector<double>{1, 2, 3}, std::vector<double>(23, NAN), std::vector<double>(23, -1)}) {
    *record.mutable_forward() = {forward.begin(), forward.end()};
    REQUIRE(fits.Load({{"time/m/1000/", record.SerializeAsString()}}).ok());
    CHECK_FALSE(fits.TimesOf("m", {}, &worker, 1000).is_measured());
    fits.Forget("m");
  }
}

}  // namespace
}  // namespace lorad::server
