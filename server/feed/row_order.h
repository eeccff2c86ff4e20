// Which rows a step trains on: a function of (seed, epoch) alone, so that a resumed job needs no
// generator state.
#pragma once

#include <cstdint>
#include <vector>

namespace lorad::server::feed {

// The rows of one pass in their order: 0..rows-1, or with `shuffle` a Fisher-Yates permutation
// whose draws are SplitMix64 of (seed, epoch, draw), without modulo bias.
std::vector<int64_t> RowOrder(int64_t rows, bool shuffle, uint64_t seed, int64_t epoch);

// Where step j (from 1) lies: consecutive cuts of an epoch's order, the last one of an epoch short
// where rows do not divide evenly.
struct BatchPlace {
  int64_t epoch = 0;
  int64_t begin = 0, end = 0;  // positions in the epoch's order
};
BatchPlace PlaceOfStep(int64_t rows, int64_t batch_size, int64_t step);

// max_steps where it is given, else epochs times the batches of one.
int64_t TotalSteps(int64_t rows, int64_t batch_size, int64_t epochs, int64_t max_steps);

}  // namespace lorad::server::feed
