#include "server/driver/check_queue.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

constexpr int64_t kLarge = 60 << 20;

CheckRows Order(const std::string& key, int64_t bytes, const std::string& share = "") {
  CheckRows order;
  order.key = key;
  order.source.bytes = bytes;
  order.share = share;
  return order;
}

std::string TakeKey(CheckQueue& queue) {
  const auto check = queue.Take();
  return check ? check->order.key : "";
}

// Takes what may be taken, and puts a space behind each key.
std::string TakeAll(CheckQueue& queue) {
  std::string taken;
  while (const auto check = queue.Take()) {
    taken += check->order.key + " ";
    queue.Done(*check);
  }
  return taken;
}

TEST_CASE("small checks go first, and every fourth time the oldest does") {
  CheckQueue queue(/*large_max=*/100);
  queue.Add(Order("first", 500));
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) queue.Add(Order(key, 10));
  queue.Add(Order("least", 1));
  CHECK(TakeAll(queue) == "first least a b c d e f ");
  queue.Add(Order("large", kLarge));
  for (const char* key : {"a", "b", "c", "d", "e", "f"}) queue.Add(Order(key, 10));
  CHECK(TakeKey(queue) == "large");  // the oldest of those who come next
}

TEST_CASE("large checks leave a thread for small ones, and those that wait are not forgotten") {
  CheckQueue queue(/*large_max=*/2);
  for (const char* key : {"l1", "l2", "l3"}) queue.Add(Order(key, kLarge, key));
  const auto first = queue.Take();
  REQUIRE(first);
  CHECK(TakeKey(queue) == "l2");
  CHECK_FALSE(queue.Take());
  queue.Add(Order("small", 1));
  CHECK(TakeKey(queue) == "small");
  queue.Done(*first);
  CHECK(TakeKey(queue) == "l3");
}

TEST_CASE("of one share large checks leave a place for a large one of another") {
  CheckQueue queue(/*large_max=*/2);
  for (const char* key : {"a1", "a2"}) queue.Add(Order(key, kLarge, "a"));
  const auto first = queue.Take();
  REQUIRE(first);
  CHECK(first->order.key == "a1");
  CHECK_FALSE(queue.Take());
  queue.Add(Order("b1", 2 * kLarge, "b"));
  CHECK(TakeKey(queue) == "b1");
  queue.Done(*first);
  CHECK(TakeKey(queue) == "a2");
}

TEST_CASE("a crowd of one share holds up nobody else") {
  CheckQueue queue(/*large_max=*/2);
  for (int i = 0; i < 100; ++i) queue.Add(Order("a" + std::to_string(i), 500'000, "a"));
  CHECK(TakeKey(queue) == "a0");
  queue.Add(Order("b0", 900'000, "b"));
  queue.Add(Order("b1", 900'000, "b"));
  queue.Add(Order("c0", 10, "c"));
  // Of each 500 kB of a's there are as many bytes of b's.
  const std::string taken = TakeAll(queue).substr(0, 30);
  CHECK(taken == "c0 a1 b0 a2 a3 b1 a4 a5 a6 a7 ");
}

TEST_CASE("a large check is not put off by small ones that never end") {
  CheckQueue queue(/*large_max=*/2);
  queue.Add(Order("large", kLarge, "a"));
  queue.Add(Order("s", 1000, "b"));
  int64_t small_bytes = 0;
  while (TakeKey(queue) == "s") {
    small_bytes += 1000;
    REQUIRE(small_bytes < kLarge);
    queue.Add(Order("s", 1000, "b"));
  }
  CHECK(small_bytes > 0);
}

TEST_CASE("who comes back has no claim from the time when it asked for nothing") {
  CheckQueue queue(/*large_max=*/2);
  for (int i = 0; i < 20; ++i) queue.Add(Order("a", 1'000'000, "a"));
  TakeAll(queue);
  for (int i = 0; i < 4; ++i) {
    queue.Add(Order("a", 1'000'000, "a"));
    queue.Add(Order("b", 1'000'000, "b"));
  }
  CHECK(TakeAll(queue) == "a b a b a b a b ");
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
