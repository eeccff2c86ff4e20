// Messages that are read ahead: in order, a few at most, all of them taken off a stream that is left.
#include "client/calls/read_ahead.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>

namespace lorad::client {
namespace {

// Gives 0, 1, .. count - 1.
struct Numbers {
  explicit Numbers(int count_in) : count(count_in) {}
  bool Read(int* out) {
    if (read == count) return false;
    *out = read++;
    return true;
  }
  const int count;
  std::atomic<int> read{0};
};

TEST_CASE("messages come in order, to the last one") {
  for (const int count : {0, 1, 3, 1000}) {
    Numbers stream(count);
    ReadAhead<int, Numbers> ahead(stream);
    int got = -1;
    for (int i = 0; i < count; ++i) {
      REQUIRE(ahead.Next(&got));
      REQUIRE(got == i);
    }
    CHECK_FALSE(ahead.Next(&got));
    CHECK_FALSE(ahead.Next(&got));
  }
}

TEST_CASE("some are read before they are asked for, and no more than four wait") {
  Numbers stream(1000);
  ReadAhead<int, Numbers> ahead(stream);
  while (stream.read < 4) std::this_thread::yield();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(stream.read == 4);
  int got = -1;
  REQUIRE(ahead.Next(&got));
  CHECK(got == 0);
  while (stream.read < 5) std::this_thread::yield();
}

TEST_CASE("what nobody asks for is read to the end") {
  Numbers stream(1000);
  { const ReadAhead<int, Numbers> ahead(stream); }
  CHECK(stream.read == 1000);
}

}  // namespace
}  // namespace lorad::client
