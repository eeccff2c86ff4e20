#include "server/driver/check_queue.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

constexpr int64_t kLarge = 60 << 20;

CheckRows Order(const std::string& key, int64_t bytes) {
  CheckRows order;
  order.key = key;
  order.source.bytes = bytes;
  return order;
}

std::string TakeKey(CheckQueue& queue) {
  const auto check = queue.Take();
  return check ? check->order.key : "";
}

TEST_CASE("small checks go first, and every fourth time the oldest does") {
  CheckQueue queue(/*large_max=*/100);
  queue.Add(Order("first", 500));
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) queue.Add(Order(key, 10));
  queue.Add(Order("least", 1));
  std::string taken;
  for (std::string key; !(key = TakeKey(queue)).empty();) taken += key + " ";
  CHECK(taken == "first least a b c d e f ");
  queue.Add(Order("large", kLarge));
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) queue.Add(Order(key, 10));
  CHECK(TakeKey(queue) == "large");  // the ninth
}

TEST_CASE("large checks leave a thread for small ones, and those that wait are not forgotten") {
  CheckQueue queue(/*large_max=*/2);
  for (const char* key : {"l1", "l2", "l3"}) queue.Add(Order(key, kLarge));
  const auto first = queue.Take();
  REQUIRE(first);
  CHECK(TakeKey(queue) == "l2");
  CHECK_FALSE(queue.Take());
  queue.Add(Order("small", 1));
  CHECK(TakeKey(queue) == "small");
  queue.Done(*first);
  CHECK(TakeKey(queue) == "l3");
}

TEST_CASE("a check that is cancelled ends, waiting or taken, and costs nobody his turn") {
  CheckQueue queue(/*large_max=*/1);
  queue.Add(Order("taken", kLarge));
  const auto taken = queue.Take();
  REQUIRE(taken);
  queue.Add(Order("small", 1));
  queue.Add(Order("waiting", kLarge));
  queue.Cancel("taken");
  CHECK(*taken->cancelled);
  queue.Cancel("waiting");
  const auto waiting = queue.Take();
  REQUIRE(waiting);
  CHECK(waiting->order.key == "waiting");
  CHECK(*waiting->cancelled);
  const auto small = queue.Take();
  REQUIRE(small);
  CHECK_FALSE(*small->cancelled);
  queue.CancelAll();
  CHECK(*small->cancelled);
}

}  // namespace
}  // namespace lorad::server
