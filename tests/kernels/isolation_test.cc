// Exactness: what a sequence and its job get does not depend on company, place, slot, grouping into
// microbatches or threads. One block of a model, forward and backward, every intermediate result
// compared bit for bit.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <map>

#include "tests/kernels/block_model.h"

namespace lorad::kernels::testing {
namespace {

constexpr int64_t kTokensMax = 2400;
constexpr int64_t kLongest = 900;
constexpr BlockShape kSmall = {.hidden = 96,
                               .feed_forward = 400,
                               .heads = 6,
                               .kv_heads = 2,
                               .head_size = 16,
                               .vocabulary = 1100,
                               .rank = 13};
// TinyLlama's layer, a shorter vocabulary.
constexpr BlockShape kTinyLlama = {.hidden = 2048,
                                   .feed_forward = 5632,
                                   .heads = 32,
                                   .kv_heads = 4,
                                   .head_size = 64,
                                   .vocabulary = 4001,
                                   .rank = 16};

bool Finite(const BlockBits& bits) {
  for (const auto& [name, rows] : bits.sequences) {
    for (const float value : rows) {
      if (!std::isfinite(value)) return false;
    }
  }
  return std::all_of(bits.state.begin(), bits.state.end(),
                     [](float value) { return std::isfinite(value); });
}

std::vector<BlockSequence> Watched(Random& random) {
  return {{0, 17, kWatchedJob, false},
          {1, 256, kWatchedJob, false},
          {2, random.Integer(257, 700), kWatchedJob, false},
          {3, random.Integer(17, 256), kWatchedJob, false},
          {4, kLongest, kWatchedJob, false}};
}

// One microbatch a sequence.
std::vector<Microbatch> Alone(const std::vector<BlockSequence>& watched) {
  std::vector<Microbatch> microbatches;
  for (const BlockSequence& sequence : watched) microbatches.push_back({sequence});
  return microbatches;
}

// The watched sequences dealt out to microbatches of at most kTokensMax tokens in a random order,
// among random strangers.
std::vector<Microbatch> Deal(Random& random, std::vector<BlockSequence> watched) {
  std::vector<Microbatch> microbatches(1);
  int64_t tokens = 0;
  int stranger = -1;
  const auto put = [&](const BlockSequence& sequence) {
    if (tokens + sequence.rows > kTokensMax || random.Integer(0, 3) == 0) {
      microbatches.emplace_back();
      tokens = 0;
    }
    microbatches.back().push_back(sequence);
    tokens += sequence.rows;
  };
  constexpr int kStrangers[] = {-1, 1, kDivergedJob};
  while (!watched.empty()) {
    if (random.Integer(0, 1) == 0) {
      put({stranger--, random.Integer(1, 300), kStrangers[random.Integer(0, 2)],
           random.Integer(0, 2) == 0});
    }
    const size_t at =
        static_cast<size_t>(random.Integer(0, static_cast<int64_t>(watched.size()) - 1));
    put(watched[at]);
    watched.erase(watched.begin() + static_cast<std::ptrdiff_t>(at));
  }
  std::erase_if(microbatches, [](const Microbatch& microbatch) { return microbatch.empty(); });
  return microbatches;
}

// Jobs by slot: alone, and in every place among the others.
const std::vector<int> kPlaces[] = {{0}, {0, 1, 2}, {2, -1, 1, 0}, {1, 0, -1, -1, 2}};

void CheckShape(const BackendCase& backend, const BlockShape& shape, uint64_t seed, int steps,
                BlockBits* want) {
  Random random(seed);
  const std::vector<BlockSequence> watched = Watched(random);
  const Limits limits = BlockModel::LimitsOf(shape, kTokensMax, kLongest);
  for (size_t place = 0; place < std::size(kPlaces); ++place) {
    World world(backend, limits, int64_t{backend.large ? 2048 : 192} << 20);
    BlockModel model(world, shape, seed, kPlaces[place]);
    const BlockBits got = model.Train(place == 0 ? Alone(watched) : Deal(random, watched), steps);
    if (want->accumulators.empty()) *want = got;
    REQUIRE(Finite(*want));
    REQUIRE(std::any_of(want->accumulators.begin(), want->accumulators.end(),
                        [](int64_t quanta) { return quanta != 0; }));
    INFO("place " << place);
    CHECK(got.sequences == want->sequences);
    CHECK(got.accumulators == want->accumulators);
    CHECK(got.state == want->state);
  }
}

TEST_CASE("A job's bits are its own: alone, among strangers, in other splits, slots and threads") {
  for (const uint64_t seed : Seeds()) {
    std::map<std::string, BlockBits> families;
    for (const BackendCase& backend : Backends()) {
      if (backend.family.empty()) continue;
      INFO(backend.name << ", seed " << seed);
      CheckShape(backend, kSmall, seed, 2, &families[backend.family]);
    }
  }
}

TEST_CASE("A job's bits are its own over 100 steps with dropout") {
  for (const BackendCase& backend : Backends()) {
    if (backend.family.empty() || !backend.large) continue;
    INFO(backend.name);
    BlockBits want;
    CheckShape(backend, kSmall, 5, 100, &want);
  }
}

TEST_CASE("A job's bits are its own, TinyLlama's shapes, 100 steps with dropout") {
  for (const BackendCase& backend : Backends()) {
    if (backend.family.empty() || !backend.large) continue;
    INFO(backend.name);
    BlockBits want;
    CheckShape(backend, kTinyLlama, 6, 100, &want);
  }
}

}  // namespace
}  // namespace lorad::kernels::testing
