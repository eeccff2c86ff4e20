// What the stages of a group say of their microbatches, summed up.
#include "server/core/cluster/measured.h"

#include <catch2/catch.hpp>

namespace lorad::server {
namespace {

worker::v1::MicrobatchDone Done(int64_t microbatch, double forward_ms, double backward_ms) {
  worker::v1::MicrobatchDone done;
  done.set_microbatch(microbatch);
  done.set_forward_ms(forward_ms);
  done.set_backward_ms(backward_ms);
  done.set_forward_begin_us(1);
  return done;
}

TEST_CASE("a microbatch takes what all of its stages take, in whatever order they say so") {
  WholePasses passes;
  CHECK_FALSE(passes.Add(Done(1, 1, 10), 3));
  CHECK_FALSE(passes.Add(Done(2, 100, 1000), 3));
  CHECK_FALSE(passes.Add(Done(1, 2, 20), 3));
  const auto first = passes.Add(Done(1, 4, 40), 3);
  REQUIRE(first);
  CHECK(first->forward_ms == 7);
  CHECK(first->backward_ms == 70);
  CHECK_FALSE(passes.Add(Done(2, 200, 0), 3));
  CHECK(passes.Add(Done(2, 400, 0), 3)->forward_ms == 700);
  const auto alone = passes.Add(Done(3, 5, 6), 1);
  REQUIRE(alone);
  CHECK(alone->backward_ms == 6);
}

TEST_CASE("of a microbatch of which a stage has computed nothing no time is known") {
  WholePasses passes;
  worker::v1::MicrobatchDone nothing = Done(1, 0, 0);
  nothing.set_forward_begin_us(0);
  CHECK_FALSE(passes.Add(nothing, 1));
  CHECK_FALSE(passes.Add(Done(1, 1, 1), 2));
  CHECK_FALSE(passes.Add(nothing, 2));
}

TEST_CASE("what never comes is forgotten") {
  WholePasses passes;
  for (int64_t number = 1; number <= 10'000; ++number)
    CHECK_FALSE(passes.Add(Done(number, 1, 1), 2));
  CHECK_FALSE(passes.Add(Done(1, 1, 1), 2));  // as if it were the first
  CHECK(passes.Add(Done(10'000, 1, 1), 2));
}

}  // namespace
}  // namespace lorad::server
