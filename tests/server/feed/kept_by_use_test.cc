#include "server/feed/kept_by_use.h"

#include <catch2/catch.hpp>
#include <string>

namespace lorad::server::feed {
namespace {

using Numbers = KeptByUse<std::string, int>;

// What is taken, in its order.
std::vector<int> Unused(Numbers& kept, int64_t now_us) {
  std::vector<int> taken;
  for (const auto& value : kept.TakeUnused(now_us)) taken.push_back(*value);
  return taken;
}

void Add(Numbers& kept, const std::string& key, int value, int64_t now_us) {
  *kept.Use(key, now_us) = value;
  kept.Weigh(key, 10);
}

TEST_CASE("what was used is kept, what nothing has used for long enough is not") {
  Numbers kept(/*bytes_max=*/1000, /*idle_us=*/50);
  Add(kept, "a", 1, 0);
  Add(kept, "b", 2, 10);
  Add(kept, "c", 3, 20);
  CHECK(*kept.Use("a", 30) == 1);
  CHECK(Unused(kept, 59).empty());
  CHECK(Unused(kept, 70) == std::vector<int>{2, 3});
  CHECK(kept.size() == 1);
  CHECK(kept.bytes() == 10);
  CHECK(*kept.Use("b", 70) == 0);  // made again
}

TEST_CASE("while there is too much, what was used longest ago goes first") {
  Numbers kept(/*bytes_max=*/25, /*idle_us=*/1000);
  Add(kept, "a", 1, 0);
  Add(kept, "b", 2, 0);
  CHECK(Unused(kept, 0).empty());
  kept.Use("a", 1);
  Add(kept, "c", 3, 2);
  CHECK(Unused(kept, 2) == std::vector<int>{2});
  kept.Weigh("a", 20);
  CHECK(kept.bytes() == 30);
  CHECK(Unused(kept, 2) == std::vector<int>{1});
  kept.Weigh("a", 500);  // it is not kept any more
  CHECK(kept.bytes() == 10);
}

TEST_CASE("what somebody holds is in use, however long and however much it is") {
  Numbers kept(/*bytes_max=*/5, /*idle_us=*/50);
  Add(kept, "a", 1, 0);
  Add(kept, "b", 2, 0);
  auto held = kept.Use("a", 0);
  CHECK(Unused(kept, 500) == std::vector<int>{2});
  held.reset();
  CHECK(Unused(kept, 500) == std::vector<int>{1});
}

TEST_CASE("those of a key that goes are taken, held or not") {
  Numbers kept(/*bytes_max=*/100, /*idle_us=*/50);
  Add(kept, "a1", 1, 0);
  Add(kept, "b1", 2, 0);
  Add(kept, "a2", 3, 0);
  const auto held = kept.Use("a2", 0);
  const auto taken = kept.TakeIf([](const std::string& key) { return key.starts_with("a"); });
  CHECK(taken.size() == 2);
  CHECK(kept.size() == 1);
  CHECK(kept.bytes() == 10);
  CHECK(*held == 3);
}

}  // namespace
}  // namespace lorad::server::feed
