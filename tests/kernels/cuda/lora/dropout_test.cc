// Philox taken apart is Philox.
#include "kernels/cuda/lora/dropout.h"

#include <catch2/catch.hpp>
#include <random>

#include "kernels/philox.h"

namespace lorad::kernels::cuda {
namespace {

TEST_CASE("Philox taken apart by rows and columns gives its bits") {
  const uint64_t random_seed = std::random_device()();
  INFO("random seed " << random_seed);
  std::mt19937_64 random(random_seed);
  const auto word = [&] { return static_cast<uint32_t>(random()); };
  for (int i = 0; i < 1000; ++i) {
    const uint64_t seed = random();
    const uint32_t sequence = word();
    const uint32_t step = word();
    const uint32_t positions[] = {0, word()};
    const uint32_t columns[] = {DropoutWord(1023, 63, 0xFFFF), word()};
    const DropoutKeys keys = DropoutKeysOf(seed);
    for (const uint32_t position : positions) {
      for (const uint32_t column : columns) {
        const PhiloxCounter want = Philox(seed, {{column, position, sequence, step}});
        const PhiloxCounter got = DropoutLanes(keys, DropoutRowOf(seed, sequence, position),
                                               DropoutColumnOf(seed, sequence, step, column));
        for (int w = 0; w < 4; ++w) REQUIRE(got.word[w] == want.word[w]);
      }
    }
  }
}

}  // namespace
}  // namespace lorad::kernels::cuda
