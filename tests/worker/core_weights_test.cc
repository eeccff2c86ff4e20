// The worker's core and the weights that a group leaves behind.
#include <catch2/catch.hpp>

#include "tests/worker/core_script.h"

namespace lorad::worker {
namespace {

TEST_CASE("weights are dropped once no group has followed for a while, and no second time") {
  Script s;
  s.Begin();
  CHECK(s.Dissolve(1).back() == "leave group");
  s.Wait(40'000);  // the engine is slow to leave
  CHECK(s.Done().empty());
  CHECK(s.core().idle());
  CHECK(s.Wait(29'999).empty());
  CHECK(s.Wait(1) == Lines{"drop weights"});
  CHECK_FALSE(s.core().idle());
  CHECK(s.Done().empty());
  CHECK(s.core().idle());
  CHECK(s.Wait(100'000).empty());
}

TEST_CASE("a group that follows in time has the weights, and keeps them as long as it stands") {
  Script s;
  s.Begin();
  s.Dissolve(1);
  s.Done();
  CHECK(s.Wait(29'999).empty());
  CHECK(s.Form(2) == Lines{"form group of epoch 2"});
  CHECK(s.Wait(50'000).empty());  // it loads for longer than that
  s.Done();
  CHECK(s.Wait(100'000).empty());
  s.Dissolve(2);
  s.Done();
  CHECK(s.Wait(30'000) == Lines{"drop weights"});
}

TEST_CASE("a group that comes while weights are dropped is formed behind that") {
  Script s;
  s.Begin();
  s.Dissolve(1);
  s.Done();
  s.Wait(30'000);
  s.Form(2);
  CHECK(s.Wait(5'000).empty());
  CHECK(s.Done() == Lines{"form group of epoch 2"});
  s.Done();
  CHECK(s.Wait(100'000).empty());
}

TEST_CASE("a group that is not formed leaves nothing behind for longer") {
  Script s;
  s.Begin();
  s.Dissolve(1);
  s.Done();
  s.Wait(20'000);
  s.Form(2);
  CHECK(s.Fails(absl::InternalError("no port")) == Lines{"say 2.1 GroupFailed GROUP_FORM"});
  CHECK(s.Wait(29'999).empty());
  CHECK(s.Wait(1) == Lines{"drop weights"});
}

TEST_CASE("who is away from the coordinator gives the weights back, too") {
  Script s;
  s.Begin();
  s.Breaks();
  s.Wait(9'999);
  s.Breaks();
  Lines lines = s.Wait(10'000);
  CHECK(lines.back() == "leave group");
  s.Done();
  bool dropped = false;
  for (int i = 0; i < 40; ++i) {
    for (const std::string& line : s.Wait(1'000)) dropped |= line == "drop weights";
  }
  CHECK(dropped);
}

}  // namespace
}  // namespace lorad::worker
